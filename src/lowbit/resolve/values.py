"""The float values of the constants a plan names."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.constants import constant
from lowbit.numerics.formats import Floats
from lowbit.plan.plan import BiasPlan


def constant_values(model: ir.Model, name: str) -> Floats:
    """Return a constant's data; raise if no scale could represent it."""
    data = constant(model.graph.initializers[name])
    if data is None:
        raise ValueError(f"the plan lists {name!r} as a constant, but it has no data")
    values = np.asarray(data, np.float32)
    if not np.isfinite(values).all():
        raise ModelError(
            f"constant {name!r} holds NaN or infinite values, which no scale represents; keep the "
            "nodes that read it in float with --exclude, or repair the model"
        )
    return values


def bias_values(model: ir.Model, row: BiasPlan) -> Floats:
    """Return what the node adds: its bias, times the factor that Gemm has for it.

    Emission resets that factor to one, so integers and scales stand for the product.
    """
    return np.atleast_1d(constant_values(model, row.tensor) * np.float32(row.factor))
