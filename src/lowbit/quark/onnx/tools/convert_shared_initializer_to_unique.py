"""Give each node its own copy of a shared constant: ``--op_types Conv Gemm``, or all."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.cli.parser import Parser
from lowbit.graph import io
from lowbit.quark.models.stored import own_constants
from lowbit.quark.onnx.tools import front


def convert(model: onnx.ModelProto, op_types: Sequence[str] = ()) -> onnx.ModelProto:
    """Return the model with constants of one reader each."""
    return io.to_proto(own_constants(io.load(model), op_types))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_shared_initializer_to_unique",
        __doc__,
        lambda model, args: own_constants(model, args.op_types),
        arguments,
        _options,
    )


def _options(parser: Parser) -> None:
    parser.add_argument("--op_types", nargs="*", default=[], metavar="TYPE")


if __name__ == "__main__":
    sys.exit(main())
