"""Confidence intervals of means, shares and ratios over samples.

``tail`` is how likely the truth lies beyond one end of an interval: 0.025 gives the usual one of 95 %.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence

import numpy as np

from lowbit.numerics.formats import DoubleArray
from lowbit.numerics.metrics import SignalNoise, decibels

TAIL = 0.025
ONE_ERROR = 0.1587
"""The share of a normal distribution beyond one standard error, at one end."""

_LOWEST_DB, _HIGHEST_DB = -120.0, 120.0
# A sample this much better than all together counts as one that is so much better: one without noise says
# nothing of how noisy others are.
_CLEANEST_DB = 10.0
_NEPER_DB = 10 / math.log(10)
# Where one sample holds all of the signal but this share, the spread of samples is not known.
_ALONE = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """A figure, and the ends between which the truth lies."""

    value: float
    low: float
    high: float

    def with_all(self, count: int, total: int) -> Interval:
        """Return where the figure of all ``total`` samples lies, by that of the first ``count`` of them.

        They are among all, so it cannot be as far off as the truth (the finite population correction).
        """
        if count >= total:
            return Interval(self.value, self.value, self.value)
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return self
        left = math.sqrt(1 - count / total)
        low, high = (self.value + left * (end - self.value) for end in (self.low, self.high))
        return Interval(self.value, low, high)

    def times(self, factor: float) -> Interval:
        """Return it in another unit."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)


def normal_quantile(tail: float) -> float:
    """Return the quantile of the normal distribution for this tail probability."""
    return statistics.NormalDist().inv_cdf(1 - tail)


def student_quantile(freedom: int, tail: float = TAIL) -> float:
    """Return the same of Student's distribution (Cornish-Fisher; 1 % off at three degrees)."""
    if freedom == 1:
        return math.tan(math.pi * (0.5 - tail))
    if freedom == 2:
        return (1 - 2 * tail) / math.sqrt(2 * tail * (1 - tail))
    z = normal_quantile(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom**power) for power, term in enumerate(terms, start=1))


def half_interval(error: float, count: int, tail: float = TAIL) -> float:
    """Return half of Student's interval, for the standard error of this many samples."""
    return student_quantile(count - 1, tail) * error if count > 1 else math.nan


def interval_of_mean(values: Sequence[float], tail: float = TAIL) -> Interval:
    """Return Student's interval of a mean; unbounded for a single value."""
    array = np.asarray(values, np.float64)
    mean = float(array.mean()) if len(array) else math.nan
    if len(array) < 2:
        return Interval(mean, -math.inf, math.inf)
    error = float(array.std(ddof=1)) / math.sqrt(len(array))
    half = half_interval(error, len(array), tail)
    return Interval(mean, mean - half, mean + half)


def interval_of_share(values: Sequence[float], tail: float = TAIL) -> Interval:
    """Return the interval of a share: Wilson's of hits and misses, else that of a mean.

    All hits of few samples are no certainty, which the interval of a mean would make of them.
    """
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        return Interval(math.nan, -math.inf, math.inf)
    share, count, z = float(array.mean()), len(array), normal_quantile(tail)
    scale = 1 + z * z / count
    centre = (share + z * z / (2 * count)) / scale
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / scale
    wilson = Interval(share, centre - half, centre + half)
    if np.isin(array, (0.0, 1.0)).all():
        return wilson
    mean = interval_of_mean(array.tolist(), tail)
    return Interval(share, max(mean.low, 0.0), min(mean.high, 1.0))


def interval_of_sqnr(parts: Sequence[SignalNoise], tail: float = TAIL) -> Interval:
    """Return the interval of the SQNR of all samples together, in decibels."""
    value = decibels(sum(part.signal for part in parts), sum(part.noise for part in parts))
    if len(parts) < 2:
        return Interval(value if parts else math.nan, -math.inf, math.inf)
    if not math.isfinite(value):
        return Interval(value, value, value)
    half = half_interval(error_of_sqnr(parts), len(parts), tail)
    return Interval(value, value - half, value + half)


def error_of_sqnr(parts: Sequence[SignalNoise]) -> float:
    """Return the standard error of the SQNR of all samples together, in decibels.

    The jackknife's, or that of log-normal noise with the spread of these samples, whichever is larger. A
    few samples seldom include the noisy ones that hold most of the noise, of which the jackknife then
    knows nothing.
    """
    if len(parts) < 2:
        return math.nan
    signal = np.array([part.signal for part in parts])
    noise = np.array([part.noise for part in parts])
    with np.errstate(invalid="ignore"):  # what is no number has no error either
        others = zip(signal.sum() - signal, noise.sum() - noise, strict=True)
    rest = [_bounded_db(float(s), float(n)) for s, n in others]
    jackknife = math.sqrt((len(parts) - 1) * statistics.pvariance(rest))
    return max(jackknife, _log_normal_error(signal, noise))


def _log_normal_error(signal: DoubleArray, noise: DoubleArray) -> float:
    """Return the standard error of the logarithm of a log-normal's mean (Cox), in decibels.

    Each sample counts by its share of the signal.
    """
    total = float(signal.sum())
    value = decibels(total, float(noise.sum()))
    if not math.isfinite(value):
        return 0.0
    share = signal / total
    own = [_bounded_db(float(s), float(n)) for s, n in zip(signal, noise, strict=True)]
    logs = np.minimum(own, value + _CLEANEST_DB) / _NEPER_DB
    # One over the number of samples, where all have the same signal.
    most = float(np.square(share).sum())
    if 1 - most < _ALONE:
        return 0.0
    variance = float(share @ np.square(logs - share @ logs)) / (1 - most)
    return math.sqrt(variance * most + variance**2 * most / (2 * (1 - most))) * _NEPER_DB


def _bounded_db(signal: float, noise: float) -> float:
    return min(max(decibels(signal, noise), _LOWEST_DB), _HIGHEST_DB)
