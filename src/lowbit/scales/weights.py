"""The parameters of constants, from the constants themselves: one tensor in memory at a time."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import MinMax, MinMse, NonOverflow, OutputMse, Percentile
from lowbit.config.specs import IntegerSpec
from lowbit.errors import ConfigError
from lowbit.numerics.affine import (
    QParams,
    choose_qparams,
    dequantize,
    power_of_two_qparams,
    quantize,
)
from lowbit.numerics.formats import FloatArray
from lowbit.scales.importance import Importance
from lowbit.scales.ranges import params_of, power_of_two_of_range
from lowbit.scales.search import power_of_two_candidates

# Below this many values the error is taken on the values, above it on their histogram.
_DIRECT = 1 << 12
_RATIOS = np.linspace(0.4, 1.0, 31)
# How far errors cancel in an output changes from one scale to the next: more to choose from.
_FINER = np.linspace(0.4, 1.0, 61)
# Weights that a search by the output's error looks at: some outputs tell as much as all.
_ENOUGH = 1 << 18


def weight_params(
    data: FloatArray, spec: IntegerSpec, axis: int | None, importance: Importance | None = None
) -> QParams:
    """Return the parameters of a constant, a scale for each channel of ``axis`` if given.

    Of a spec with groups, ``axis`` is the one that groups lie along.

    Errors count by ``importance``; all alike if there is none.
    """
    data = np.asarray(data, np.float32)
    if isinstance(spec.method, OutputMse):
        spec = msgspec.structs.replace(spec, method=MinMse())
    if axis is None:
        return _per_tensor(data, spec, importance)
    rows = _rows(data, axis, spec.group)
    params = _of_rows(rows, spec, _row_importance(importance, axis, spec.group))
    scale = _revive(params.scale, rows)
    if spec.group is None:
        return QParams(scale, params.zero_point, spec.format, axis)
    shape = list(np.moveaxis(data, axis, -1).shape)
    shape[-1] = -1
    scale, zero = (
        np.moveaxis(array.reshape(shape), -1, axis) for array in (scale, params.zero_point)
    )
    return QParams(scale, zero, spec.format, axis, spec.group, data.shape[axis])


def _rows(data: FloatArray, axis: int, group: int | None) -> FloatArray:
    """Return a row for each channel of an axis, or for each group along it, filled up by zeros."""
    if group is None:
        return np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
    last = np.moveaxis(data, axis, -1)
    missing = -last.shape[-1] % group
    return np.pad(last, [(0, 0)] * (data.ndim - 1) + [(0, missing)]).reshape(-1, group)


def _row_importance(
    importance: Importance | None, axis: int, group: int | None
) -> Importance | None:
    """Return the importance of what has a scale of its own, a row each."""
    if importance is None:
        return None
    if group is None and axis == importance.axis:
        return importance.of_rows()
    matter = _rows(importance.alone, axis, group)
    return Importance(matter, np.zeros_like(matter), 0)


def _of_rows(rows: FloatArray, spec: IntegerSpec, known: Importance | None) -> QParams:
    match spec.method:
        case MinMax() if not spec.power_of_two:
            return _per_row(rows, np.ones(1, np.float32), spec, None)
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


def integers(data: FloatArray, params: QParams, spec: IntegerSpec) -> NDArray[np.integer]:
    """Return the stored integers of a constant: nearest codes within the format's limits."""
    limits = spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)
    return quantize(data, params, limits)


def _per_tensor(data: FloatArray, spec: IntegerSpec, importance: Importance | None) -> QParams:
    low, high = (float(data.min()), float(data.max())) if data.size else (0.0, 0.0)
    match spec.method:
        case NonOverflow(nearest=nearest):
            return power_of_two_of_range((low, high), spec, nearest=nearest)
        case MinMse(histogram=kind) if spec.power_of_two:
            return _power_of_two_mse(data, spec, importance, quark=kind == "growing")
        case MinMax() if spec.power_of_two:
            return power_of_two_of_range((low, high), spec, nearest=False)
        case MinMax():
            return choose_qparams(
                low, high, spec.format, symmetric=spec.symmetric, reduce_range=spec.reduce_range
            )
        case MinMse() if importance is not None:
            return _least_output_error(data, spec, importance)
        case MinMse() if data.size < _DIRECT:
            row = _per_row(data.reshape(1, -1), _RATIOS.astype(np.float32), spec, None)
            return QParams(row.scale.reshape(()), row.zero_point.reshape(()), spec.format)
        case MinMse() | Percentile():
            return params_of(TensorStats.of(data, histogram=True), spec, "a weight")
    name = type(spec.method).__name__
    raise ConfigError(f"{name} is not a method for weights; take minmax, mse or percentile")


def _power_of_two_mse(
    data: FloatArray, spec: IntegerSpec, importance: Importance | None, *, quark: bool
) -> QParams:
    """Return the power-of-two scale of least squared error on the values themselves."""
    low, high = (float(data.min()), float(data.max())) if data.size else (0.0, 0.0)
    if quark:
        start = power_of_two_of_range((low, high), spec, nearest=True).position
        positions = [start + i - 1 for i in range(5)]
    else:
        positions = power_of_two_candidates(low, high, spec)[:4]
    tried = [power_of_two_qparams(position, spec.format) for position in positions]
    errors = [_error(data, params, spec, importance) for params in tried]
    return tried[int(np.argmin(errors))]


def _error(
    data: FloatArray, params: QParams, spec: IntegerSpec, importance: Importance | None
) -> float:
    difference = data - dequantize(integers(data, params, spec), params)
    if importance is not None:
        return float(importance.error(difference).sum(dtype=np.float64))
    flat = difference.reshape(-1)
    return float(flat @ flat)


def _least_output_error(data: FloatArray, spec: IntegerSpec, importance: Importance) -> QParams:
    """Return the parameters of the shrunken range with the least error of the outputs."""
    low, high = min(float(data.min()), 0.0), max(float(data.max()), 0.0)
    step = -(-data.size // _ENOUGH)
    rows, known = importance.rows(data)[::step], importance.of_rows(step)
    tried = [
        choose_qparams(
            low * ratio,
            high * ratio,
            spec.format,
            symmetric=spec.symmetric,
            reduce_range=spec.reduce_range,
        )
        for ratio in _FINER[::-1]
    ]
    errors = [_error(rows, params, spec, known) for params in tried]
    return tried[int(np.argmin(errors))]


def _per_row(
    rows: FloatArray, ratios: FloatArray, spec: IntegerSpec, known: Importance | None
) -> QParams:
    """Return, for each row, the parameters of the shrunken range with the least squared error."""
    low, high = rows.min(axis=1, initial=0.0), rows.max(axis=1, initial=0.0)
    qmin, qmax = spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)
    best: QParams | None = None
    least = np.full(len(rows), np.inf)
    for ratio in ratios[::-1]:
        params = choose_qparams(
            low * ratio,
            high * ratio,
            spec.format,
            symmetric=spec.symmetric,
            reduce_range=spec.reduce_range,
        )
        if best is None:
            best = params
            if len(ratios) == 1:
                break
        scale, zero = params.scale[:, None], params.zero_point[:, None].astype(np.float32)
        codes = np.clip(np.rint(rows / scale) + zero, qmin, qmax)
        difference = rows - (codes - zero) * scale
        error = np.square(difference).sum(axis=1) if known is None else known.error(difference)
        better = error < least
        least = np.where(better, error, least)
        best = QParams(
            np.where(better, params.scale, best.scale),
            np.where(better, params.zero_point, best.zero_point).astype(spec.format.dtype),
            spec.format,
        )
    if best is None:
        raise ValueError("no ratio to try")
    return best


def _revive(scale: FloatArray, rows: FloatArray) -> FloatArray:
    """Give channels of nothing but zeros the smallest scale of the others.

    Any scale represents zeros, but the bias of such a channel is stored in steps of input scale
    times this scale, and must not become coarse.
    """
    dead = ~rows.any(axis=1)
    if not dead.any() or dead.all():
        return scale
    return np.where(dead, scale[~dead].min(), scale).astype(np.float32)
