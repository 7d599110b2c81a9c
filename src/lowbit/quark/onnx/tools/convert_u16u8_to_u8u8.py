"""Narrow uint16 activations to uint8 over the same ranges."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.retyping import halve_width
from lowbit.quark.onnx.tools import front


def convert_u16u8_to_u8u8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with uint8 activations."""
    return io.to_proto(halve_width(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_u16u8_to_u8u8", __doc__, lambda model, _: halve_width(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
