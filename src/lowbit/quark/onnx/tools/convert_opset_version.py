"""Bring a model to a later operator set: ``INPUT TARGET_OPSET OUTPUT``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.tools import front
from lowbit.quark.rewriting import to_opset


def convert_opset_version(model: onnx.ModelProto, target_opset: int) -> onnx.ModelProto:
    """Return the model at an operator set."""
    return io.to_proto(to_opset(io.load(model), target_opset))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""

    def work() -> None:
        parser = front.make_parser("convert_opset_version", __doc__)
        front.add_word(parser, "input", ["--input"], "the model to read")
        front.add_word(parser, "target_opset", ["--target_opset"], "the operator set")
        front.add_word(parser, "output", ["--output"], "the model to write")
        args = front.parse(parser, arguments, "input", "target_opset", "output")
        if not args.target_opset.isdecimal():
            raise QuarkConfigError(f"TARGET_OPSET is {args.target_opset!r}; expected a number")
        io.check_writable(args.output)
        io.save(to_opset(io.load(args.input), int(args.target_opset)), args.output)

    return front.guarded("convert_opset_version", work)


if __name__ == "__main__":
    sys.exit(main())
