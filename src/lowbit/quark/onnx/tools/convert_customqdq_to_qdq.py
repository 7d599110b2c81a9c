"""Replace Quark's Q/DQ of integers by onnxruntime's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.custom import to_standard
from lowbit.quark.onnx.tools import front


def convert_customqdq_to_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with Q/DQ that onnxruntime knows, where there are any."""
    return io.to_proto(to_standard(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_customqdq_to_qdq", __doc__, lambda model, _: to_standard(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
