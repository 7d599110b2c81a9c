"""How sure the gap between two models is, from the same samples through both."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

_GROUPS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A difference, its interval of 95 %, and the variance a single sample adds to it."""

    value: float
    low: float
    high: float
    variance: float

    def samples_needed(self, tolerance: float) -> int:
        """Return how many samples would know the gap to within the tolerance."""
        z = statistics.NormalDist().inv_cdf(0.975)
        return max(2, math.ceil(self.variance * (z / tolerance) ** 2))


def gap_of_hits(float_hits: Sequence[bool], quantized_hits: Sequence[bool]) -> Gap:
    """Return the gap of two shares of hits, as shares.

    The interval of Bonett and Price (2012) for paired proportions: a hit lost and a hit won are
    added to those seen, so that it holds for few samples, too.
    """
    count = len(float_hits)
    pairs = list(zip(float_hits, quantized_hits, strict=True))
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    p, q = (lost + 1) / (count + 2), (won + 1) / (count + 2)
    variance = p + q - (p - q) ** 2
    half = statistics.NormalDist().inv_cdf(0.975) * math.sqrt(variance / (count + 2))
    return Gap((lost - won) / count, max(-1.0, p - q - half), min(1.0, p - q + half), variance)


def gap_of_scores(float_scores: Sequence[float], quantized_scores: Sequence[float]) -> Gap:
    """Return the gap of two means, with Student's interval of the paired differences."""
    differences = [a - b for a, b in zip(float_scores, quantized_scores, strict=True)]
    mean = statistics.fmean(differences)
    if len(differences) < 2:
        return Gap(mean, -math.inf, math.inf, math.inf)
    variance = statistics.variance(differences)
    half = _student(len(differences) - 1) * math.sqrt(variance / len(differences))
    return Gap(mean, mean - half, mean + half, variance)


def gap_of_sets(
    float_items: Sequence[Any],
    quantized_items: Sequence[Any],
    summarize: Callable[[Sequence[Any]], float],
) -> Gap:
    """Return the gap of a figure of a whole set, such as a mean average precision.

    The interval is the jackknife's: the gap without each of twenty groups of samples.
    """
    count = len(float_items)
    whole = summarize(float_items) - summarize(quantized_items)
    groups = min(_GROUPS, count)
    if groups < 2:
        return Gap(whole, -math.inf, math.inf, math.inf)
    without = []
    for group in range(groups):
        kept = [i for i in range(count) if i % groups != group]
        gap = summarize([float_items[i] for i in kept])
        without.append(gap - summarize([quantized_items[i] for i in kept]))
    error = (groups - 1) * statistics.pvariance(without)
    half = _student(groups - 1) * math.sqrt(error)
    return Gap(whole, whole - half, whole + half, error * count)


def _student(freedom: int) -> float:
    """Return the 97.5 % point of Student's distribution (Cornish-Fisher; 1 % off at three)."""
    if freedom < 3:
        return {1: 12.706, 2: 4.303}[freedom]
    z = statistics.NormalDist().inv_cdf(0.975)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / float(freedom**power) for power, term in enumerate(terms, start=1))
