"""Give the tensors around Resize power-of-two scales."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.retyping import power_of_two_resizes
from lowbit.quark.onnx.tools import front


def convert_resize_fs_to_pof2s(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with power-of-two scales around Resize."""
    return io.to_proto(power_of_two_resizes(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_resize_fs_to_pof2s",
        __doc__,
        lambda model, _: power_of_two_resizes(model),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
