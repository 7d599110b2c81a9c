"""Fix the shapes of inputs and outputs: ``--fix_shapes "input:[1,3,224,224]"``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.cli.parser import Parser
from lowbit.graph import io
from lowbit.quark import rewriting
from lowbit.quark.onnx.tools import front


def fix_shapes(model: onnx.ModelProto, fix_shapes_config: str) -> onnx.ModelProto:
    """Return the model with fixed shapes."""
    shapes = rewriting.parse_shapes(fix_shapes_config)
    return io.to_proto(rewriting.fix_shapes(io.load(model), shapes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_dynamic_to_fixed",
        __doc__,
        lambda model, args: rewriting.fix_shapes(model, rewriting.parse_shapes(args.fix_shapes)),
        arguments,
        _options,
    )


def _options(parser: Parser) -> None:
    parser.add_argument("--fix_shapes", required=True, metavar="NAME:[DIMS];...")


if __name__ == "__main__":
    sys.exit(main())
