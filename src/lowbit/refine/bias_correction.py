"""Bias correction from the statistics of calibration, at no further pass over the data.

Rounding the weights W to W' shifts the mean output of channel o by
sum_c (sum_k W'[o,c,k] - W[o,c,k]) E[x_c], with E[x_c] the mean of input channel c, which
calibration has measured. Taking the shift off the bias leaves each layer's mean output where the
float model has it.

Where the target computes an operator otherwise, a layer's input x' is not the float model's x. Its
counterpart in the float reference is measured as well, and the shift is W' E[x'] - W E[x].
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.errors import CalibrationError
from lowbit.numerics.affine import dequantize
from lowbit.numerics.formats import FloatArray
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.linear import layer_of, linear_operator
from lowbit.planning.plan import BiasPlan, Plan
from lowbit.scales.parameters import Params, bias_values, constant_values
from lowbit.scales.solver_cache import SolverCache, as_key
from lowbit.scales.stored import Weights


def corrected_biases(
    model: ir.Model,
    plan: Plan,
    params: Params,
    stats: Stats,
    weights: Weights,
    float_names: Mapping[str, str] = MappingProxyType({}),
    known: SolverCache | None = None,
) -> dict[str, FloatArray]:
    """Return the corrected float bias of every node whose input means are known.

    ``known`` are solutions of other plans for the same model and statistics.
    """
    known = SolverCache() if known is None else known
    nodes = {node.name: node for node in model.graph}
    corrected = {}
    for row in plan.biases:
        node = nodes[row.node]
        layer = layer_of(node) if linear_operator(node) is not None else ""
        name = float_names.get(row.input, row.input)
        if isinstance(layer, str) or not {row.input, name} <= _with_means(stats, row.input, name):
            continue
        if row.weight not in weights.tensors or row.weight not in params.tensors:
            continue
        key = ("bias", row.node, row.input, row.weight, as_key(params.tensors[row.weight]))
        corrected[row.node] = known.get(
            key, functools.partial(_corrected, model, row, layer, params, stats, weights, name)
        )
    return corrected


def _corrected(
    model: ir.Model,
    row: BiasPlan,
    layer: LinearLayer,
    params: Params,
    stats: Stats,
    weights: Weights,
    float_name: str,
) -> FloatArray:
    means, original = stats[row.input].channels, stats[float_name].channels
    if means is None or original is None:
        raise ValueError(f"the means of {row.input!r} are not known")
    read = layer.groups * layer.inputs
    for name, found in ((row.input, means), (float_name, original)):
        if found.size != read:
            raise CalibrationError(
                f"the statistics of tensor {name!r} are of {found.size} channels, but node {row.node!r} "
                f"reads {read}; collect them again without --stats"
            )
    weight = constant_values(model, row.weight)
    rounded = dequantize(weights.tensors[row.weight](), params.tensors[row.weight])
    shift = layer.mean_difference(rounded, weight, means)
    if float_name != row.input:
        shift = shift + layer.mean_output(weight, means - original)
    return (bias_values(model, row) - shift).astype(np.float32)


def _with_means(stats: Stats, *names: str) -> set[str]:
    """Return those of some tensors whose channel means are known."""
    found = (name for name in names if name in stats.tensors)
    return {name for name in found if stats[name].totals is not None}
