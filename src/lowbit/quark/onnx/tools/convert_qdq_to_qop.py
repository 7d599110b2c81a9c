"""Turn Q/DQ pairs into integer operators, as onnxruntime fuses them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.precision import to_integer_operators
from lowbit.quark.onnx.tools import front


def convert_qdq_to_qop(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with QLinear operators."""
    return io.to_proto(to_integer_operators(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_qdq_to_qop", __doc__, lambda model, _: to_integer_operators(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
