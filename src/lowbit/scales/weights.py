"""The parameters of constants, from the constants themselves: one tensor in memory at a time.

What errors in the weights of a layer do to its output is known where its inputs were observed: errors d
in the weights of one output, whose inputs have means m and variances v, shift its mean by sum(d m) and
add sum(d^2 v) to its variance. The shift is what hurts most after a Relu, where all means are positive
and errors do not cancel; bias correction takes it off, if there is one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.methods import Hqq, MinMax, MinMse, NonOverflow, OutputMse, Percentile
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import (
    QParams,
    dequantize,
    power_of_two_qparams,
    quantize,
    range_qparams,
)
from lowbit.numerics.formats import FloatArray, IntArray
from lowbit.ops.geometry import TransposedConvLayer
from lowbit.ops.linear import layer_of, linear_operator
from lowbit.planning.plan import Plan
from lowbit.scales.hqq import hqq_params
from lowbit.scales.ranges import params_of, power_of_two_of_range
from lowbit.scales.saturation import SummedPairs, saturation_free
from lowbit.scales.search import power_of_two_candidates


@dataclasses.dataclass(frozen=True, slots=True)
class Importance:
    """Variance and mean of the input that each weight multiplies, in the weight's shape.

    ``axis`` is where outputs lie. Means of zero count every error by itself.
    """

    variances: FloatArray
    means: FloatArray
    axis: int

    def rows(self, array: FloatArray) -> FloatArray:
        """Return an array like the weight as one row for each output."""
        return np.moveaxis(array, self.axis, 0).reshape(array.shape[self.axis], -1)

    def of_rows(self, step: int = 1) -> Importance:
        """Return the importance of the weight's rows, or of every n-th one."""
        variances, means = (self.rows(a)[::step] for a in (self.variances, self.means))
        return Importance(variances, means, 0)

    def row(self, index: int) -> Importance:
        """Return the importance of one row."""
        return self.part(slice(index, index + 1))

    def part(self, part: slice) -> Importance:
        """Return the importance of some rows."""
        return Importance(self.variances[part], self.means[part], 0)

    def error(self, difference: FloatArray) -> FloatArray:
        """Return the expected squared error of each output."""
        rows = self.rows(difference)
        spread = np.einsum("ij,ij,ij->i", rows, rows, self.rows(self.variances))
        shift = np.einsum("ij,ij->i", rows, self.rows(self.means))
        return np.asarray(spread + shift * shift, np.float32)

    @property
    def by_weight(self) -> FloatArray:
        """The weight of each squared error, if errors are independent."""
        return self.variances + np.square(self.means)

    def combined_with(self, other: Importance) -> Importance:
        """Return the importance of a weight that two layers share: errors count independently."""
        both = self.by_weight + other.by_weight
        return Importance(both, np.zeros_like(both), self.axis)


def weight_importance(
    model: ir.Model, plan: Plan, stats: Stats
) -> dict[str, Callable[[], Importance | None]]:
    """Return functions that compute the importance of each weight that needs it."""
    nodes = {node.name: node for node in model.graph}
    asking = {t.name for t in plan.weights() if isinstance(t.spec.calibration, OutputMse)}
    readers: dict[str, list[tuple[ir.Node, TensorStats]]] = {}
    for row in plan.biases:
        known = stats.tensors.get(row.input)
        if row.weight not in asking or known is None:
            continue
        if known.variances is not None and known.channels is not None:
            readers.setdefault(row.weight, []).append((nodes[row.node], known))
    return {name: functools.partial(_joint_importance, found) for name, found in readers.items()}


def _joint_importance(readers: Sequence[tuple[ir.Node, TensorStats]]) -> Importance | None:
    """Return the importance of a weight to all layers that use it, unless their inputs are zero."""
    found: Importance | None = None
    for node, stats in readers:
        new = _importance(node, stats)
        if new is not None:
            found = new if found is None else found.combined_with(new)
    return found if found is not None and float(found.by_weight.max()) > 0 else None


def _importance(node: ir.Node, stats: TensorStats) -> Importance | None:
    variances, means = (np.asarray(a, np.float32) for a in (stats.variances, stats.channels))
    row, layer = linear_operator(node), layer_of(node)
    # The scale of a normalization multiplies what is normalized, not what was observed.
    if row is None or isinstance(layer, str):
        return None
    spread, middle = layer.spread(variances), layer.spread(means)
    known = Importance(spread, middle, row.channel_axis(node) % spread.ndim)
    if not isinstance(layer, TransposedConvLayer):
        return known
    # Which taps meet in one output depends on strides and pads.
    return Importance(known.by_weight, np.zeros_like(middle), known.axis)


# Below this many values the error is taken on the values, above it on their histogram.
_DIRECT = 1 << 12
# Numbers that are rounded at once while ratios are tried.
_AT_ONCE = 1 << 16
# Numbers of a large weight whose rows are searched at once.
_ROWS_AT_ONCE = 1 << 21
_RATIOS = np.linspace(0.4, 1.0, 31)
# How far errors cancel in an output changes from one scale to the next: more to choose from.
_FINER = np.linspace(0.4, 1.0, 61)
# Weights that a search by the output's error looks at: some outputs tell as much as all.
_ENOUGH = 1 << 18


def weight_params(
    data: FloatArray,
    spec: IntegerSpec,
    axis: int | None,
    importance: Importance | None = None,
    pairs: SummedPairs | None = None,
) -> QParams:
    """Return the parameters of a constant, a scale for each channel of ``axis`` if given.

    Of a spec with a group size, ``axis`` is the one that groups lie along.

    Errors count by ``importance``; all alike if there is none. ``pairs`` are what must not saturate.
    """
    found = _weight_params(data, spec, axis, importance)
    return found if pairs is None else saturation_free(data, found, spec, pairs)


def _weight_params(
    data: FloatArray, spec: IntegerSpec, axis: int | None, importance: Importance | None
) -> QParams:
    data = np.asarray(data, np.float32)
    # Powers of two are too few to choose from for another norm to matter.
    few = isinstance(spec.method, Hqq) and spec.power_of_two
    if isinstance(spec.method, OutputMse) or few:
        spec = msgspec.structs.replace(spec, method=MinMse())
    if axis is None:
        return _per_tensor(data, spec, importance)
    rows = _rows(data, axis, spec.group_size)
    params = _in_parts(rows, spec, _row_importance(importance, axis, spec.group_size))
    scale = _revive(params.scale, rows)
    if spec.group_size is None:
        return QParams(scale, params.zero_point, spec.format, axis)
    shape = list(np.moveaxis(data, axis, -1).shape)
    shape[-1] = -1
    scale, zero = (
        np.moveaxis(array.reshape(shape), -1, axis) for array in (scale, params.zero_point)
    )
    return QParams(scale, zero, spec.format, axis, spec.group_size, data.shape[axis])


def _rows(data: FloatArray, axis: int, group_size: int | None) -> FloatArray:
    """Return a row for each channel of an axis, or for each group along it, filled up by zeros."""
    if group_size is None:
        return np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
    last = np.moveaxis(data, axis, -1)
    missing = -last.shape[-1] % group_size
    return np.pad(last, [(0, 0)] * (data.ndim - 1) + [(0, missing)]).reshape(-1, group_size)


def _row_importance(
    importance: Importance | None, axis: int, group_size: int | None
) -> Importance | None:
    """Return the importance with one row for each scale."""
    if importance is None:
        return None
    if group_size is None and axis == importance.axis:
        return importance.of_rows()
    matter = _rows(importance.by_weight, axis, group_size)
    return Importance(matter, np.zeros_like(matter), 0)


def _in_parts(rows: FloatArray, spec: IntegerSpec, known: Importance | None) -> QParams:
    """Return the parameters of each row, some rows at a time: a search makes several arrays of their size."""
    step = max(1, _ROWS_AT_ONCE // max(rows.shape[1], 1))
    if len(rows) <= step:
        return _of_rows(rows, spec, known)
    parts = [slice(start, start + step) for start in range(0, len(rows), step)]
    found = [_of_rows(rows[p], spec, None if known is None else known.part(p)) for p in parts]
    scale, zero = (np.concatenate([getattr(p, f) for p in found]) for f in ("scale", "zero_point"))
    return QParams(scale, zero, spec.format)


def _of_rows(rows: FloatArray, spec: IntegerSpec, known: Importance | None) -> QParams:
    match spec.method:
        case MinMax() if not spec.power_of_two:
            return _per_row(rows, np.ones(1, np.float32), spec, None)
        case Hqq() if not spec.power_of_two:
            return hqq_params(rows, spec, spec.method)
        case MinMse() if not spec.power_of_two:
            return _per_row(rows, _RATIOS.astype(np.float32), spec, known)
        case _:
            each = [
                _per_tensor(row[None], spec, None if known is None else known.row(index))
                for index, row in enumerate(rows)
            ]
            return QParams(
                np.array([float(p.scale) for p in each], np.float32),
                np.array([int(p.zero_point) for p in each], spec.format.dtype),
                spec.format,
            )


def integers(
    data: FloatArray, params: QParams, spec: IntegerSpec, pairs: SummedPairs | None = None
) -> NDArray[np.integer]:
    """Return the stored integers of a constant: nearest codes within the format's limits.

    Where ``pairs`` of them must not saturate, within those too.
    """
    codes = quantize(data, params, spec.limits)
    if pairs is None:
        return codes
    return pairs.nearest(codes.astype(np.float32), spec.limits[1]).astype(codes.dtype)


def _per_tensor(data: FloatArray, spec: IntegerSpec, importance: Importance | None) -> QParams:
    low, high = (float(data.min()), float(data.max())) if data.size else (0.0, 0.0)
    match spec.method:
        case NonOverflow(nearest=nearest):
            return power_of_two_of_range((low, high), spec, nearest=nearest)
        case MinMse() if spec.power_of_two:
            candidates = power_of_two_candidates(low, high, spec)[:4]
            return best_power_of_two(data, spec, candidates, importance)
        case MinMax() if spec.power_of_two:
            return power_of_two_of_range((low, high), spec, nearest=False)
        case MinMax():
            return _range_params(low, high, spec)
        case MinMse() if importance is not None:
            return _least_output_error(data, spec, importance)
        case MinMse() | Hqq() if data.size < _DIRECT or isinstance(spec.method, Hqq):
            row = _of_rows(data.reshape(1, -1), spec, None)
            return QParams(row.scale.reshape(()), row.zero_point.reshape(()), spec.format)
        case MinMse() | Percentile():
            return params_of(TensorStats.of(data, histogram=True), spec, "a weight")
    params: QParams = spec.method.weight_parameters_of(data, spec)
    return params


def best_power_of_two(
    data: FloatArray,
    spec: IntegerSpec,
    candidates: Sequence[int],
    importance: Importance | None = None,
) -> QParams:
    """Return the power-of-two scale of least squared error on the values, by its fraction bits."""
    tried = [power_of_two_qparams(fraction_bits, spec.format) for fraction_bits in candidates]
    errors = [_error(data, params, spec, importance) for params in tried]
    return tried[int(np.argmin(errors))]


def _range_params(low: FloatArray | float, high: FloatArray | float, spec: IntegerSpec) -> QParams:
    return range_qparams(
        low, high, spec.format, symmetric=spec.symmetric, reduce_range=spec.reduce_range
    )


def _error(
    data: FloatArray, params: QParams, spec: IntegerSpec, importance: Importance | None
) -> float:
    difference = data - dequantize(integers(data, params, spec), params)
    if importance is not None:
        return float(importance.error(difference).sum(dtype=np.float64))
    flat = difference.reshape(-1)
    with np.errstate(over="ignore"):
        found = float(flat @ flat)
    # Squares of numbers beyond 1e19 are too large for float32.
    return found if np.isfinite(found) else float(np.square(flat, dtype=np.float64).sum())


def _least_output_error(data: FloatArray, spec: IntegerSpec, importance: Importance) -> QParams:
    """Return the parameters of the shrunken range with the least error of the outputs."""
    low, high = min(float(data.min()), 0.0), max(float(data.max()), 0.0)
    step = -(-data.size // _ENOUGH)
    rows, known = importance.rows(data)[::step], importance.of_rows(step)
    tried = [_range_params(low * ratio, high * ratio, spec) for ratio in _FINER[::-1]]
    errors = [_error(rows, params, spec, known) for params in tried]
    return tried[int(np.argmin(errors))]


def _per_row(
    rows: FloatArray, ratios: FloatArray, spec: IntegerSpec, known: Importance | None
) -> QParams:
    """Return, for each row, the parameters of the shrunken range with the least squared error."""
    low, high = rows.min(axis=1, initial=0.0), rows.max(axis=1, initial=0.0)
    shrunken = ratios[::-1, None]
    tried = _range_params(low * shrunken, high * shrunken, spec)
    errors = np.full(tried.scale.shape, np.inf)
    # Of small weights, several ratios at once: a call takes longer than what it computes.
    step = 1 if known is not None else max(1, _AT_ONCE // max(rows.size, 1))
    for start in range(0, len(ratios) if len(ratios) > 1 else 0, step):
        part = slice(start, start + step)
        errors[part] = _row_errors(rows, tried.scale[part], tried.zero_point[part], spec, known)
    # Of errors that are no numbers, as of numbers beyond 1e19, the whole range is kept.
    best = np.argmin(np.where(errors < np.inf, errors, np.inf), axis=0)
    each = np.arange(len(rows))
    return QParams(tried.scale[best, each], tried.zero_point[best, each], spec.format)


def _row_errors(
    rows: FloatArray,
    scales: FloatArray,
    zero_points: IntArray,
    spec: IntegerSpec,
    known: Importance | None,
) -> FloatArray:
    """Return the squared error of each row with each of some parameters."""
    scale, zero = scales[:, :, None], zero_points[:, :, None].astype(np.float32)
    low, high = (limit - zero for limit in spec.limits)
    # One array all the way: to get memory takes as long as to compute.
    found = rows / scale
    np.rint(found, out=found)
    np.maximum(found, low, out=found)
    np.minimum(found, high, out=found)
    found *= scale
    np.subtract(rows, found, out=found)
    with np.errstate(over="ignore"):
        if known is None:
            return np.asarray(np.square(found, out=found).sum(axis=2))
        return np.asarray([known.error(part) for part in found])


def _revive(scale: FloatArray, rows: FloatArray) -> FloatArray:
    """Give channels of nothing but zeros the smallest scale of the others.

    Any scale represents zeros, but the bias of such a channel is stored in steps of input scale
    times this scale, and must not become coarse.
    """
    dead = ~rows.any(axis=1)
    if not dead.any() or dead.all():
        return scale
    return np.where(dead, scale[~dead].min(), scale).astype(np.float32)
