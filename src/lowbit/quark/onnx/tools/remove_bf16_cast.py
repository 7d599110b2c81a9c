"""Take out pairs of Cast to bfloat16 and back; constants are rounded to bfloat16."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.custom import without_casts
from lowbit.quark.onnx.tools import front


def remove_bf16_cast(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without such pairs."""
    return io.to_proto(without_casts(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "remove_bf16_cast", __doc__, lambda model, _: without_casts(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
