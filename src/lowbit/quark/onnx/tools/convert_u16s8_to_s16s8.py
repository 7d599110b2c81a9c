"""Turn uint16 activations around 32768 into int16 around zero."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import onnx

from lowbit.graph import io
from lowbit.quark.models.retyping import shift_zero_point
from lowbit.quark.onnx.tools import front


def convert_u16s8_to_s16s8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with int16 activations."""
    return io.to_proto(
        shift_zero_point(io.load(model), np.dtype(np.uint16), (32767, 32768), np.dtype(np.int16), 0)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_u16s8_to_s16s8",
        __doc__,
        lambda model, _: shift_zero_point(
            model, np.dtype(np.uint16), (32767, 32768), np.dtype(np.int16), 0
        ),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
