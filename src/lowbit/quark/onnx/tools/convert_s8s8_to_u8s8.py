"""Turn int8 activations around zero into uint8 around 128."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import onnx

from lowbit.graph import io
from lowbit.quark.models.retyping import shift_zero_point
from lowbit.quark.onnx.tools import front


def convert_s8s8_to_u8s8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with uint8 activations; it computes the same."""
    return io.to_proto(
        shift_zero_point(io.load(model), np.dtype(np.int8), (0,), np.dtype(np.uint8), 128)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_s8s8_to_u8s8",
        __doc__,
        lambda model, _: shift_zero_point(model, np.dtype(np.int8), (0,), np.dtype(np.uint8), 128),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
