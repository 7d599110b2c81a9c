"""Clip activations to bfloat16's range before they become bfloat16."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.custom import clip_before
from lowbit.quark.onnx.tools import front


def insert_clip_bfloat16_qdq(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with Clip before Q of bfloat16."""
    return io.to_proto(clip_before(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "insert_clip_bfloat16_qdq", __doc__, lambda model, _: clip_before(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
