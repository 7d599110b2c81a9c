"""The scale with the least squared error, searched on a density."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams, power_of_two_qparams, range_qparams
from lowbit.scales.density import Density, DoubleArray

_COARSE = np.geomspace(0.01, 1.0, 43)
_OCTAVES = 6
_TOGETHER = 4
_TINY = float(np.finfo(np.float32).tiny)


def code_range(params: QParams, spec: IntegerSpec) -> tuple[float, float]:
    """Return the values of the smallest and the largest code."""
    low, high = spec.limits
    scale, zero = float(params.scale), int(params.zero_point)
    return scale * (low - zero), scale * (high - zero)


def error_of(density: Density, params: QParams, spec: IntegerSpec) -> float:
    """Return the mean squared error of quantizing the density with these parameters."""
    low, high = code_range(params, spec)
    return float(
        density.squared_error(np.array([float(params.scale)]), np.array([low]), np.array([high]))[0]
    )


def best_params(density: Density, low: float, high: float, spec: IntegerSpec) -> QParams:
    """Return the parameters of least squared error for values between ``low`` and ``high``."""
    if spec.power_of_two:
        return _best_power_of_two(density, low, high, spec)
    if not density.weight.any():
        # Nothing but values too small for the histogram, which cannot price a smaller range.
        return _params(low, high, spec)
    if spec.symmetric:
        top = max(abs(low), abs(high))
        ratio = _best_ratio(density, lambda d, r: _symmetric_errors(d, top * r, spec))
        return _params(-top * ratio, top * ratio, spec)
    return _best_asymmetric(density, low, high, spec)


def power_of_two_candidates(low: float, high: float, spec: IntegerSpec) -> list[int]:
    """Return the fraction bits worth trying: from holding all of the range to 2**-5 of it."""
    qmin, qmax = spec.limits
    top = max(abs(low), abs(high))
    if top < _TINY:
        return [0]
    first = int(np.floor(np.log2((qmax - qmin) / 2 / top)))
    return list(range(first, first + _OCTAVES))


def power_of_two_errors(density: Density, candidates: list[int], spec: IntegerSpec) -> DoubleArray:
    """Return the mean squared error with each number of fraction bits."""
    scale = np.exp2(-np.asarray(candidates, np.float64))
    zero = int(power_of_two_qparams(0, spec.format).zero_point)
    low, high = spec.limits
    return density.squared_error(scale, scale * (low - zero), scale * (high - zero))


def _best_power_of_two(density: Density, low: float, high: float, spec: IntegerSpec) -> QParams:
    candidates = power_of_two_candidates(low, high, spec)
    errors = power_of_two_errors(density, candidates, spec)
    return power_of_two_qparams(candidates[int(np.argmin(errors))], spec.format)


def _symmetric_errors(density: Density, top: DoubleArray, spec: IntegerSpec) -> DoubleArray:
    qmin, qmax = spec.format.limits(symmetric=True, reduce_range=spec.reduce_range)
    scale = 2 * top / (qmax - qmin)
    zero = 0 if spec.format.signed else (qmax + qmin + 1) // 2
    return density.squared_error(scale, scale * (qmin - zero), scale * (qmax - zero))


def _best_ratio(density: Density, errors: Callable[[Density, DoubleArray], DoubleArray]) -> float:
    """Return the ratio (of at most 1) of least error: a coarse search, then a fine one."""
    coarse = int(np.argmin(errors(density.coarser(_TOGETHER), _COARSE)))
    low, high = _COARSE[max(coarse - 1, 0)], _COARSE[min(coarse + 1, len(_COARSE) - 1)]
    fine = np.linspace(low, high, 11)
    return float(fine[int(np.argmin(errors(density, fine)))])


def _best_asymmetric(density: Density, low: float, high: float, spec: IntegerSpec) -> QParams:
    """Shrink both ends together, then each alone."""

    def errors(priced: Density, lows: DoubleArray, highs: DoubleArray) -> DoubleArray:
        tried = _params(lows, highs, spec)
        scale, zero = (np.asarray(a, np.float64) for a in (tried.scale, tried.zero_point))
        first, last = (scale * (limit - zero) for limit in spec.limits)
        return priced.squared_error(scale, first, last)

    both = _best_ratio(density, lambda d, r: errors(d, low * r, high * r))
    low, high = low * both, high * both
    if high > 0:
        high *= _best_ratio(density, lambda d, r: errors(d, np.full(len(r), low), high * r))
    if low < 0:
        low *= _best_ratio(density, lambda d, r: errors(d, low * r, np.full(len(r), high)))
    return _params(low, high, spec)


def _params(low: float | DoubleArray, high: float | DoubleArray, spec: IntegerSpec) -> QParams:
    return range_qparams(
        low, high, spec.format, symmetric=spec.symmetric, reduce_range=spec.reduce_range
    )
