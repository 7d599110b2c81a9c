"""Bias correction from the statistics of calibration, at no further pass over the data.

Rounding the weights W to W' shifts the mean output of channel o by
sum_c (sum_k W'[o,c,k] - W[o,c,k]) E[x_c], with E[x_c] the mean of input channel c, which
calibration has measured. Taking the shift off the bias leaves each layer's mean output where the
float model has it.

Where the target computes an operator otherwise, a layer's input x' is not the float model's x. Its
counterpart in the float reference is measured beside it, and the shift is W' E[x'] - W E[x].
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.calibrate.statistics import Stats
from lowbit.numerics.affine import dequantize
from lowbit.numerics.formats import FloatArray
from lowbit.ops.linear import layer_of, linear_operator
from lowbit.planning.plan import Plan
from lowbit.scales.parameters import Params, bias_values, constant_values
from lowbit.scales.stored import Weights


def corrected_biases(
    model: ir.Model,
    plan: Plan,
    params: Params,
    stats: Stats,
    weights: Weights,
    float_names: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, FloatArray]:
    """Return the corrected float bias of every node whose input means are known."""
    nodes = {node.name: node for node in model.graph}
    corrected = {}
    for row in plan.biases:
        means = _means(stats, row.input)
        original = _means(stats, float_names.get(row.input, row.input))
        node = nodes[row.node]
        layer = layer_of(node) if linear_operator(node) is not None else ""
        if means is None or original is None or isinstance(layer, str):
            continue
        if row.weight not in weights.tensors or row.weight not in params.tensors:
            continue
        weight = constant_values(model, row.weight)
        rounded = dequantize(weights.tensors[row.weight](), params.tensors[row.weight])
        shift = layer.mean_difference(rounded, weight, means)
        if original is not means:
            shift = shift + layer.mean_output(weight, means - original)
        corrected[row.node] = (bias_values(model, row) - shift).astype(np.float32)
    return corrected


def _means(stats: Stats, name: str) -> NDArray[np.float64] | None:
    return stats.tensors[name].channels if name in stats.tensors else None
