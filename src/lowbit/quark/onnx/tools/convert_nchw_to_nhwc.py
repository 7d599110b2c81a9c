"""Make four-dimensional inputs and outputs channels-last, with Transpose inside."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.onnx.tools import front
from lowbit.quark.rewriting import nchw_to_nhwc


def convert_nchw_to_nhwc(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with channels-last inputs and outputs."""
    return io.to_proto(nchw_to_nhwc(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "convert_nchw_to_nhwc", __doc__, lambda model, _: nchw_to_nhwc(model), arguments
    )


if __name__ == "__main__":
    sys.exit(main())
