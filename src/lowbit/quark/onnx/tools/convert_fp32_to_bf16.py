"""Convert a float model to bfloat16, without calibration data.

``--format``: ``with_cast`` (pairs of Cast, the default), ``customqdq`` (Quark's operators),
``simulate_bf16`` (float32 rounded to bfloat16, no Cast inside) or ``bf16`` (as ``with_cast``, with
weights stored in 16 bits).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec
import onnx_ir as ir

from lowbit.api import quantize
from lowbit.cli.parser import Parser, one_of
from lowbit.config.quark import QUARK_PRESETS
from lowbit.quark.models.custom import without_casts
from lowbit.quark.onnx.tools import front

_FORMATS = ("with_cast", "customqdq", "simulate_bf16", "bf16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return convert_to_bf16("convert_fp32_to_bf16", arguments)


def convert_to_bf16(tool: str, arguments: Sequence[str] | None) -> int:
    """Convert one file into another, under the name of a tool."""
    return front.convert(tool, __doc__, _changed, arguments, _options)


def _options(parser: Parser) -> None:
    parser.add_argument("--format", type=one_of(_FORMATS), default="with_cast", metavar="FORMAT")


def _changed(model: ir.Model, args: argparse.Namespace) -> ir.Model:
    preset = QUARK_PRESETS["BF16" if args.format == "customqdq" else "BF16_CAST"]
    config = msgspec.structs.replace(preset, half_weights=args.format == "bf16")
    changed = quantize(model, data="random", config=config).quantized
    return without_casts(changed) if args.format == "simulate_bf16" else changed


if __name__ == "__main__":
    sys.exit(main())
