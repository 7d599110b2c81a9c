"""The stored numbers of constants and biases, by rounding to nearest.

Refinement may replace them; emission only writes them. Those of large constants are made when
they are written, so that memory holds one constant at a time.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.specs import IntegerSpec
from lowbit.numerics.formats import FloatArray
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.bias import bias_integers
from lowbit.scales.floats import float_values
from lowbit.scales.parameters import Params, bias_values, constant_values
from lowbit.scales.weights import integers as integers_of

Integers = NDArray[np.integer]


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
    """Integers of constants, made on call, and of biases by node.

    ``floats`` are float32 values, made on call, of constants in 16-bit floats or block formats: what
    is written, and rounded to the format by the model itself or when it is stored.
    """

    tensors: Mapping[str, Callable[[], Integers]]
    biases: Mapping[str, Integers]
    floats: Mapping[str, Callable[[], FloatArray]] = dataclasses.field(default_factory=dict)


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
    integers, floats = {}, {}
    for tensor in plan.weights():
        if isinstance(tensor.spec, IntegerSpec):
            integers[tensor.name] = _maker(model, tensor, params)
        else:
            floats[tensor.name] = functools.partial(float_values, model, tensor)
    return Weights(integers, biases, floats)


def _maker(model: ir.Model, tensor: TensorPlan, params: Params) -> Callable[[], Integers]:
    return lambda: integers_of(
        constant_values(model, tensor.name), params.tensors[tensor.name], tensor.integer
    )
