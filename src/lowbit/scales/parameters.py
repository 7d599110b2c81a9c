"""The parameters of every planned tensor, and the float values of the constants a plan names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.editing import constant
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import FloatArray
from lowbit.planning.plan import BiasPlan


@dataclasses.dataclass(frozen=True, slots=True)
class Adjustment:
    """A parameter that had to move, and what it cost.

    ``cost_db`` is how far the tensor's own SQNR fell.
    """

    tensor: str
    before: float
    after: float
    why: str
    cost_db: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Params:
    """Scales and zero points, by tensor; those of biases by node.

    ``bias_values`` are the float biases as added, where they are no longer the model's own.
    ``biases_before`` are those of product biases before an alignment moved their input's scale.
    ``scales`` are of tensors in 16-bit floats that are scaled; others have none.
    """

    tensors: Mapping[str, QParams]
    biases: Mapping[str, QParams]
    adjustments: tuple[Adjustment, ...] = ()
    bias_values: Mapping[str, FloatArray] = dataclasses.field(default_factory=dict)
    biases_before: Mapping[str, QParams] = dataclasses.field(default_factory=dict)
    scales: Mapping[str, float] = dataclasses.field(default_factory=dict)


def constant_values(model: ir.Model, name: str) -> FloatArray:
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


def bias_values(model: ir.Model, row: BiasPlan) -> FloatArray:
    """Return what the node adds: its bias, times the factor that Gemm has for it.

    Emission resets that factor to one, so integers and scales stand for the product.
    """
    return np.atleast_1d(constant_values(model, row.tensor) * np.float32(row.factor))
