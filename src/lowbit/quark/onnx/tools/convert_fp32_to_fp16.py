"""Convert a float32 model to float16, with onnxruntime's converter."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.cli.parser import Parser
from lowbit.quark.models.precision import single_to_half
from lowbit.quark.onnx.tools import front


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_fp32_to_fp16",
        __doc__,
        lambda model, args: single_to_half(
            model, keep_io=args.keep_io_types, infer_shapes=not args.disable_shape_infer
        ),
        arguments,
        _options,
    )


def _options(parser: Parser) -> None:
    parser.add_argument("--keep_io_types", action="store_true", help="float32 at both ends")
    parser.add_argument("--disable_shape_infer", action="store_true")
    for option in ("--all_tensors_to_one_file", "--not_simplify"):
        parser.add_argument(option, action="store_true", help="(what is done anyway)")


if __name__ == "__main__":
    sys.exit(main())
