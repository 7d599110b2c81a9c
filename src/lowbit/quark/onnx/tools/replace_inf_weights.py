"""Replace infinite weights: ``--replace_inf_value 10000``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import onnx

from lowbit.graph import io
from lowbit.quark.models.stored import finite_constants
from lowbit.quark.onnx.tools import front


def replace_inf_in_onnx_weights(
    input_model: str | onnx.ModelProto,
    output_model: str | None = None,
    replace_inf_value: float = 10000.0,
) -> onnx.ModelProto | None:
    """Return the model with finite weights, or write it."""
    changed = finite_constants(io.load(input_model), replace_inf_value)
    if output_model is None:
        return io.to_proto(changed)
    io.save(changed, output_model)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one file into another."""
    return front.convert(
        "replace_inf_weights",
        __doc__,
        lambda model, args: finite_constants(model, args.replace_inf_value),
        arguments,
        lambda parser: parser.add_argument("--replace_inf_value", type=float, default=10000.0),
    )


if __name__ == "__main__":
    sys.exit(main())
