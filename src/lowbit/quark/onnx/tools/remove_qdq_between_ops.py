"""Take out the Q/DQ pairs between given operators: ``--between_ops "Conv,Relu;Mul,Add"``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx
import onnx_ir as ir

from lowbit.graph import io
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.models.pairs import remove_pairs
from lowbit.quark.onnx.tools import front


def remove_qdq_between_ops(
    model: onnx.ModelProto, between_ops: Sequence[tuple[str, str]]
) -> onnx.ModelProto:
    """Return the model without pairs between a first and a second operator."""
    return io.to_proto(without_pairs(io.load(model), between_ops))


def without_pairs(model: ir.Model, between: Sequence[tuple[str, str]]) -> ir.Model:
    """Return ``model`` itself, changed."""
    known = set(between)

    def wanted(quantizer: ir.Node, dequantizer: ir.Node) -> bool:
        source = quantizer.inputs[0]
        producer = source.producer() if source is not None else None
        uses = tuple(dequantizer.outputs[0].uses())
        if producer is None or len(uses) != 1:
            return False
        return (producer.op_type, uses[0].node.op_type) in known

    remove_pairs(model.graph, wanted)
    return model


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "remove_qdq_between_ops",
        __doc__,
        lambda model, args: without_pairs(model, _pairs(args.between_ops)),
        arguments,
        lambda parser: parser.add_argument("--between_ops", required=True, metavar="A,B;C,D"),
    )


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs = []
    for part in filter(str.strip, text.split(";")):
        words = [word.strip() for word in part.split(",")]
        if len(words) != 2:
            raise QuarkConfigError(f"--between_ops: {part!r} is not two operators, such as Mul,Add")
        pairs.append((words[0], words[1]))
    return pairs


if __name__ == "__main__":
    sys.exit(main())
