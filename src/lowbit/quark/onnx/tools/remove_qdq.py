"""Take all Q/DQ pairs out; stored integers become floats."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lowbit.quark.onnx.tools.convert_quant_to_float import convert_quant_to_float as remove_qdq
from lowbit.quark.onnx.tools.convert_quant_to_float import main as _main

__all__ = ["main", "remove_qdq"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return _main(arguments, "remove_qdq")


if __name__ == "__main__":
    sys.exit(main())
