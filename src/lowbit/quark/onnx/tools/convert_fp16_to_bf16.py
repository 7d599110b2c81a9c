"""Convert a float16 model to bfloat16, without calibration data."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.quark.onnx.tools.convert_fp32_to_bf16 import convert_to_bf16


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return convert_to_bf16("convert_fp16_to_bf16", arguments)


if __name__ == "__main__":
    sys.exit(main())
