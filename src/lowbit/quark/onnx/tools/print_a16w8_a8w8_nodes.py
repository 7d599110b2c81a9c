"""List the Conv, ConvTranspose and Gemm nodes with 8-bit and with 16-bit activations."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph import io
from lowbit.quark.models.pairs import DEQUANTIZE, parameters
from lowbit.quark.onnx.tools import front

_LAYERS = ("Conv", "ConvTranspose", "Gemm")


def a16w8_a8w8_nodes(input_model_path: str) -> tuple[list[str], list[str]]:
    """Return the names of nodes with 8-bit activations, and of those with 16-bit ones."""
    model = io.load(input_model_path)
    names: dict[int, list[str]] = {1: [], 2: []}
    for node in model.graph:
        size = _activation_bytes(node) if node.op_type in _LAYERS else None
        if size in names:
            names[size].append(node.name or "")
    return names[1], names[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the lists."""

    def work() -> None:
        parser = front.make_parser("print_a16w8_a8w8_nodes", __doc__)
        front.add_word(parser, "input", ["--input", "--input_model"], "the quantized model")
        args = front.parse(parser, arguments, "input")
        for kind, names in zip(("int8", "int16"), a16w8_a8w8_nodes(args.input), strict=True):
            lines = [f"{kind} activation node names:", *names]
            print("\n".join([*lines, f"{kind} activation node count: {len(names)}"]))  # noqa: T201

    return front.guarded("print_a16w8_a8w8_nodes", work)


def _activation_bytes(node: ir.Node) -> int | None:
    source = node.inputs[0].producer() if node.inputs[0] is not None else None
    if source is None or source.op_type not in DEQUANTIZE:
        return None
    _, zero = parameters(source)
    return int(np.dtype(np.uint8 if zero is None else zero.dtype).itemsize)


if __name__ == "__main__":
    sys.exit(main())
