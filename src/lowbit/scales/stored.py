"""The stored numbers of constants and biases, by rounding to nearest.

Refinement may replace them; emission only writes them. Those of large constants are made when
they are written, so that memory holds one constant at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.bias import bias_integers
from lowbit.scales.formats import storable_values
from lowbit.scales.parameters import Params, bias_values, constant_values
from lowbit.scales.saturation import SummedPairs, pairs_of
from lowbit.scales.solver_cache import SolverCache, as_key
from lowbit.scales.weights import integers

Stored = NDArray[Any]
"""Integers, or float32 values that the format of their tensor holds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """The stored values of constants, made on call, and the integers of biases by node.

    Constants of an integer format are integers; all others are float32 values, rounded to the
    format by the model itself or when they are written.
    """

    tensors: Mapping[str, Callable[[], Stored]]
    biases: Mapping[str, NDArray[np.integer]]


def nearest(
    model: ir.Model, plan: Plan, params: Params, known: SolverCache | None = None
) -> Weights:
    """Return the nearest stored numbers for every planned constant and bias.

    ``known`` are solutions of other plans for the same model.
    """
    biases = {
        row.node: bias_integers(
            params.bias_values.get(row.node, bias_values(model, row)),
            row,
            params.biases[row.node],
            params.biases_before.get(row.node),
        )
        for row in plan.biases
    }
    pairs = pairs_of(model, plan)
    tensors = {
        t.name: functools.partial(_stored, model, t, params, pairs.get(t.name))
        for t in plan.weights()
    }
    if known is not None:
        tensors = {
            t.name: functools.partial(
                known.stored,
                ("stored", t.name, t.pairs, as_key(params.tensors[t.name])),
                tensors[t.name],
            )
            if t.spec.is_integer
            else tensors[t.name]
            for t in plan.weights()
        }
    return Weights(tensors, biases)


def _stored(
    model: ir.Model, tensor: TensorPlan, params: Params, pairs: SummedPairs | None
) -> Stored:
    if not tensor.spec.is_integer:
        return storable_values(model, tensor)
    return integers(
        constant_values(model, tensor.name), params.tensors[tensor.name], tensor.integer, pairs
    )
