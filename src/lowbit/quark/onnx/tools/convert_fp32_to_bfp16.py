"""Convert a float model to BFP16 (blocks with a common exponent), without calibration data."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx_ir as ir

from lowbit.api import quantize
from lowbit.quark.onnx.quantization.config.custom_config import get_default_config
from lowbit.quark.onnx.tools import front
from lowbit.quark.translate.job import make_job


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return convert_to_bfp16("convert_fp32_to_bfp16", arguments)


def convert_to_bfp16(tool: str, arguments: Sequence[str] | None) -> int:
    """Convert one file into another, under the name of a tool."""
    return front.convert(tool, __doc__, lambda model, _: _changed(model), arguments)


def _changed(model: ir.Model) -> ir.Model:
    job = make_job(get_default_config("BFP16"), model, lenient=False)
    return quantize(model, data="random", config=job.config, target=job.target).quantized


if __name__ == "__main__":
    sys.exit(main())
