"""Clip 32-bit biases to 16 bits; the operator set becomes 21."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.retyping import int16_biases
from lowbit.quark.onnx.tools import front


def convert_bias_int32_to_int16(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with 16-bit biases."""
    return io.to_proto(int16_biases(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_bias_int32_to_int16", __doc__, lambda model, _: int16_biases(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
