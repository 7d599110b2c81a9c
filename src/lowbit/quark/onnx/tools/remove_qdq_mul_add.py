"""Take out the Q/DQ pairs between Mul and Add."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.onnx.tools import front
from lowbit.quark.onnx.tools.remove_qdq_between_ops import without_pairs

_MUL_ADD = (("Mul", "Add"),)


def remove_qdq_mul_add(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without pairs between Mul and Add."""
    return io.to_proto(without_pairs(io.load(model), _MUL_ADD))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "remove_qdq_mul_add", __doc__, lambda model, _: without_pairs(model, _MUL_ADD), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
