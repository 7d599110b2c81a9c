"""Write Q/DQ of bfloat16 as Cast."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.custom import to_casts
from lowbit.quark.onnx.tools import front


def replace_bfloat16_qdq_cast(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with Cast, and Mul where there is a scale."""
    return io.to_proto(to_casts(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "replace_bfloat16_qdq_cast", __doc__, lambda model, _: to_casts(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
