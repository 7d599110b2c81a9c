"""Give an XINT8 model 32-bit biases, for integer kernels of CPUs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.retyping import int32_biases
from lowbit.quark.onnx.tools import front


def convert_a8w8_npu_to_a8w8_cpu(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with biases in the scale its layers accumulate in."""
    return io.to_proto(int32_biases(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_a8w8_npu_to_a8w8_cpu", __doc__, lambda model, _: int32_biases(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
