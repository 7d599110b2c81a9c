"""The stored integers of constants and biases, by rounding to nearest.

Refinement may replace them; emission only writes them. Integers of large constants are made when
they are written, so that memory holds one constant at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.plan.plan import Plan, TensorPlan
from lowbit.resolve.bias import bias_integers
from lowbit.resolve.params import Params
from lowbit.resolve.values import bias_values, constant_values
from lowbit.resolve.weights import integers

Integers = NDArray[np.integer]


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """Integers of constants, made on call, and of biases by node."""

    tensors: Mapping[str, Callable[[], Integers]]
    biases: Mapping[str, Integers]


def nearest(model: ir.Model, plan: Plan, params: Params) -> Weights:
    """Return the nearest integers for every planned constant and bias."""
    biases = {
        row.node: bias_integers(
            params.bias_values.get(row.node, bias_values(model, row)),
            row,
            params.biases[row.node],
            params.biases_before.get(row.node),
        )
        for row in plan.biases
    }
    return Weights({t.name: _maker(model, t, params) for t in plan.weights()}, biases)


def _maker(model: ir.Model, tensor: TensorPlan, params: Params) -> Callable[[], Integers]:
    return lambda: integers(
        constant_values(model, tensor.name), params.tensors[tensor.name], tensor.spec
    )
