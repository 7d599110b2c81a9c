"""Take constants off the list of inputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.stored import constants_are_no_inputs
from lowbit.quark.onnx.tools import front


def remove_initializer_from_input(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inputs that are fed only."""
    return io.to_proto(constants_are_no_inputs(io.load(model)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "remove_initializer_from_input",
        __doc__,
        lambda model, _: constants_are_no_inputs(model),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main())
