"""The parameters of one activation from its statistics, by the method its spec names.

Entropy is TensorRT's method, as onnxruntime has it: for every symmetric window around zero, merge its
bins into the quantizer's levels, spread them out again over the occupied bins, and take the window of
least Kullback-Leibler divergence.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    MinMax,
    MinMse,
    NonOverflow,
    Percentile,
)
from lowbit.config.specs import IntegerSpec, Spec
from lowbit.numerics.affine import QParams, power_of_two_qparams, range_qparams
from lowbit.numerics.formats import FloatArray, IntegerFormat
from lowbit.scales.density import Density
from lowbit.scales.search import best_params, code_range, error_of

_EPSILON = 1e-4


def entropy_window(counts: NDArray[np.int64], levels: int, stride: int = 1) -> tuple[int, int]:
    """Return the first and last edge (as indices) of the best window of a signed histogram.

    ``stride`` tries only every so many windows.
    """
    middle, half = len(counts) // 2, levels // 2
    best, window = np.inf, (0, len(counts))
    for reach in range(half, middle + 1, stride):
        start, end = middle - reach, min(middle + reach + 1, len(counts))
        divergence = _divergence(counts, start, end, levels)
        if divergence < best:
            best, window = divergence, (start, end)
    return window


def _divergence(counts: NDArray[np.int64], start: int, end: int, levels: int) -> float:
    inside = counts[start:end]
    reference = inside.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[end:].sum()
    quantized = _requantized(inside, reference != 0, levels)
    p, q = _smooth(reference), _smooth(quantized)
    if p is None or q is None:
        return np.inf
    # In single precision, as onnxruntime does: the choice between near ties depends on it.
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


def _requantized(
    inside: NDArray[np.int64], occupied: NDArray[np.bool_], levels: int
) -> NDArray[np.int64]:
    """Merge bins into levels, then spread each level evenly over its occupied bins."""
    merged = len(inside) // levels
    body = levels * merged
    sums = inside[:body].reshape(levels, merged).sum(axis=1)
    sums[-1] += inside[body:].sum()
    filled = occupied[:body].reshape(levels, merged).sum(axis=1)
    share = np.divide(sums, filled, out=np.zeros(levels), where=filled != 0).astype(np.int64)
    spread = np.zeros(len(inside), np.int64)
    spread[:body] = np.repeat(share, merged)
    return spread


def _smooth(counts: NDArray[np.int64]) -> FloatArray | None:
    """Give empty bins a little weight, taken from the others; ``None`` if that is impossible."""
    empty = counts == 0
    occupied = len(counts) - int(empty.sum())
    if occupied == 0:
        return None
    taken = _EPSILON * float(empty.sum()) / occupied
    if taken >= 1.0:
        return None
    smoothed = counts.astype(np.float32)
    smoothed += np.where(empty, np.float32(_EPSILON), np.float32(-taken))
    return smoothed if (smoothed > 0).all() else None


Range = tuple[float, float]


def params_of(stats: TensorStats, spec: IntegerSpec, name: str) -> QParams:
    """Return the parameters that the spec's method chooses for these statistics."""
    if stats.count == 0:
        return params_of_range((0.0, 0.0), spec)
    match spec.method:
        case MinMse():
            return best_params(Density.of(stats, name), stats.low, stats.high, spec)
        case NonOverflow(nearest=nearest):
            return power_of_two_of_range((stats.low, stats.high), spec, nearest=nearest)
        case LayerwisePercentile():
            return _layerwise(stats, spec, spec.method, name)
    found: QParams | None = spec.method.parameters_of(stats, spec, name)
    return params_of_range(range_of(stats, spec, name), spec) if found is None else found


def params_of_range(limits: Range, spec: IntegerSpec) -> QParams:
    """Return the parameters that hold a range; rounded to a power of two where asked for.

    Symmetric formats leave out the lowest integer, unless the range is exactly that of all integers.
    """
    if spec.power_of_two:
        return power_of_two_of_range(limits, spec, nearest=spec.method.rounds_to_nearest)
    if spec.symmetric and not spec.reduce_range and _holds_all_integers(limits, spec.format):
        limits = -limits[1], limits[1]
    return range_qparams(
        *limits, spec.format, symmetric=spec.symmetric, reduce_range=spec.reduce_range
    )


def _holds_all_integers(limits: Range, fmt: IntegerFormat) -> bool:
    """Whether a range is as far from symmetric as the integers of a signed format are."""
    low, high = limits
    return fmt.signed and high > 0 and math.isclose(low * fmt.high, high * fmt.low, rel_tol=1e-9)


def params_holding(params: QParams, seen: Range, headroom: float, spec: IntegerSpec) -> QParams:
    """Return ``params``, or those of a larger range that holds ``headroom`` times what was seen.

    The next power of two leaves room as it is, so power-of-two scales hold what was seen.
    """
    low, high = code_range(params, spec)
    reach = 1.0 if spec.power_of_two else headroom
    wanted = reach * min(seen[0], 0.0), reach * max(seen[1], 0.0)
    if low <= wanted[0] and wanted[1] <= high:
        return params
    if not spec.symmetric:
        wanted = min(low, wanted[0]), max(high, wanted[1])
    return params_of_range(wanted, spec)


def scaled_range(params: QParams, spec: IntegerSpec, factor: float) -> Range:
    """Return the range that gives a tensor its scale times a factor, and its zero point."""
    low, high = code_range(params, spec)
    return low * factor, high * factor


def power_of_two_of_range(limits: Range, spec: IntegerSpec, *, nearest: bool) -> QParams:
    """Return the power-of-two scale that holds a range, or the one nearest to its float scale."""
    exact = range_qparams(*limits, spec.format, symmetric=True, reduce_range=spec.reduce_range)
    bits = -math.log2(float(exact.scale))
    # A scale of exactly 2**-f must not be pushed to the next power by the last bit of its log.
    rounded = round(bits) if nearest else math.floor(bits + 1e-6)
    return power_of_two_qparams(int(rounded), spec.format)


def range_of(stats: TensorStats, spec: Spec, name: str) -> Range:
    """Return the range that the spec's method chooses for these statistics."""
    method = spec.calibration
    match method:
        case None:
            raise TypeError(f"{spec.describe()} has no range")
        case MinMax(moving_average=None):
            return stats.low, stats.high
        case MinMax():
            return stats.average or (stats.low, stats.high)
        case Percentile(percentile=percent):
            return percentile_range(stats, percent, symmetric=spec.is_symmetric, name=name)
        case Entropy(bins=bins, levels=levels):
            return _entropy(stats, bins, levels, name)
        case Distribution(deviations=deviations):
            return _distribution(stats, deviations, name)
    return method.range_of(stats, spec, name)


def chosen_range(stats: TensorStats, spec: IntegerSpec, name: str) -> Range:
    """Return the range that the spec's method chooses, also where it chooses parameters at once."""
    if stats.count == 0:
        return 0.0, 0.0
    method = spec.method
    by_parameters = isinstance(method, (MinMse, NonOverflow, LayerwisePercentile))
    found = None if by_parameters else method.parameters_of(stats, spec, name)
    if not by_parameters and found is None:
        return range_of(stats, spec, name)
    params = found or params_of(stats, spec, name)
    scale, zero = float(params.scale), int(params.zero_point)
    low, high = spec.limits
    return (low - zero) * scale, (high - zero) * scale


def percentile_range(stats: TensorStats, percent: float, *, symmetric: bool, name: str) -> Range:
    """Return the range that holds ``percent`` percent of the values."""
    if symmetric:
        top = Density.of(stats, name, absolute=True).quantile(percent / 100)
        return _not_empty(stats, max(-top, stats.low), min(top, stats.high))
    density, cut = Density.of(stats, name), (100 - percent) / 200
    return _not_empty(stats, density.quantile(cut), density.quantile(1 - cut))


def _not_empty(stats: TensorStats, low: float, high: float) -> Range:
    """Return the range, or all that was seen if it holds nothing but zero.

    That happens where more than the percentile is zero, or all of it too small for the histogram.
    """
    return (stats.low, stats.high) if low == high == 0.0 else (low, high)


def _layerwise(
    stats: TensorStats, spec: IntegerSpec, method: LayerwisePercentile, name: str
) -> QParams:
    """Return the candidate percentile's parameters with the least error on this tensor."""
    density = Density.of(stats, name)
    ranges = [
        percentile_range(stats, p, symmetric=spec.symmetric, name=name) for p in method.candidates
    ]
    tried = [params_of_range(limits, spec) for limits in ranges]
    if method.metric == "mse":
        errors = [error_of(density, params, spec) for params in tried]
    else:
        centres = (density.start + density.end) / 2
        errors = [error_at(centres, density.weight, p, spec, power=1) for p in tried]
    return tried[int(np.argmin(errors))]


def _distribution(stats: TensorStats, deviations: float, name: str) -> Range:
    density = Density.of(stats, name)
    total = max(density.total, 1.0)
    mean = float((density.weight * (density.start + density.end) / 2).sum()) / total
    spread = math.sqrt(max(density.power() - mean * mean, 0.0))
    reach = deviations * spread
    return _not_empty(stats, max(stats.low, mean - reach), min(stats.high, mean + reach))


def _entropy(stats: TensorStats, bins: int, levels: int, name: str) -> Range:
    top, density = max(abs(stats.low), abs(stats.high)), Density.of(stats, name)
    if not density.weight.any():
        return stats.low, stats.high
    edges = np.linspace(-top, top, bins + 1)
    counts = np.rint(density.linear(edges)).astype(np.int64)
    start, end = entropy_window(counts, levels, stride=max(1, bins // 256))
    return max(float(edges[start]), stats.low), min(float(edges[end]), stats.high)


def error_at(
    values: NDArray[np.floating],
    weights: NDArray[Any],
    params: QParams,
    spec: IntegerSpec,
    *,
    power: int,
) -> float:
    """Return the weighted sum of quantization errors at some values, to a power."""
    low, high = spec.limits
    scale, zero = float(params.scale), int(params.zero_point)
    codes = np.clip(np.rint(values / scale) + zero, low, high)
    return float((weights * np.abs(values - (codes - zero) * scale) ** power).sum())
