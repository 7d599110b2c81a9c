"""Bias correction from the statistics of calibration, at no further pass over the data.

Rounding the weights W to W' shifts the mean output of channel o by
sum_c (sum_k W'[o,c,k] - W[o,c,k]) E[x_c], with E[x_c] the mean of input channel c, which
calibration has measured. Taking the shift off the bias leaves each layer's mean output where the
float model has it. (Borders of padded convolutions see slightly smaller means; that is neglected.)

Where the target computes an operator otherwise, a layer's input x' is not the float model's x. Its
``twin`` is measured beside it, and the shift is W' E[x'] - W E[x].
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
from lowbit.planning.plan import Plan
from lowbit.scales.parameters import Params, bias_values, constant_values
from lowbit.scales.stored import Weights


def corrected_biases(
    model: ir.Model,
    plan: Plan,
    params: Params,
    stats: Stats,
    weights: Weights,
    twins: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, FloatArray]:
    """Return the corrected float bias of every node whose input means are known."""
    nodes = {node.name: node for node in model.graph}
    corrected = {}
    for row in plan.biases:
        means = _means(stats, row.input)
        original = _means(stats, twins.get(row.input, row.input))
        node = nodes[row.node]
        if (
            means is None
            or original is None
            or row.weight not in weights.tensors
            or node.op_type not in _SHIFTS
        ):
            continue
        weight = constant_values(model, row.weight)
        rounded = dequantize(weights.tensors[row.weight](), params.tensors[row.weight])
        shift_of = _SHIFTS[node.op_type]
        error = rounded.astype(np.float64) - weight
        shift = shift_of(node, error, means)
        if original is not means:
            shift = shift + shift_of(node, weight.astype(np.float64), means - original)
        corrected[row.node] = (bias_values(model, row) - shift).astype(np.float32)
    return corrected


def _means(stats: Stats, name: str) -> NDArray[np.float64] | None:
    return stats.tensors[name].channels if name in stats.tensors else None


def _conv_shift(
    node: ir.Node, error: NDArray[np.float64], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights are [out, in / group, ...]: each output sees the channels of its group."""
    group = node.attributes.get_int("group", 1)
    sums = error.reshape(*error.shape[:2], -1).sum(axis=2)
    seen = np.repeat(means.reshape(group, -1), error.shape[0] // group, axis=0)
    return np.asarray((sums * seen).sum(axis=1))


def _transposed_shift(
    node: ir.Node, error: NDArray[np.float64], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights are [in, out / group, ...]; with a stride each output sees part of the kernel."""
    group = node.attributes.get_int("group", 1)
    strides = node.attributes.get_ints("strides", (1,))
    sums = error.reshape(*error.shape[:2], -1).sum(axis=2) / float(np.prod(strides))
    parts = (sums * means[:, None]).reshape(group, -1, error.shape[1])
    return np.asarray(parts.sum(axis=1).reshape(-1))


def _gemm_shift(
    node: ir.Node, error: NDArray[np.float64], means: NDArray[np.float64]
) -> NDArray[np.float64]:
    matrix = error if node.attributes.get_int("transB", 0) else error.T
    return np.asarray(matrix @ means * node.attributes.get_float("alpha", 1.0))


_SHIFTS = {"Conv": _conv_shift, "ConvTranspose": _transposed_shift, "Gemm": _gemm_shift}
