"""A tensor's values as a density over bins, and the exact quantization error of such a density.

Inside a bin the density is taken as uniform. The squared error of rounding to multiples of s is
then integrated in closed form: with F(u) = integral of (t - round(t))^2 from 0 to u
= n/12 + r^3/3, n = round(u), r = u - n, the error over [a, b] is s^3 (F(b/s) - F(a/s)); beyond
the last code U it is the integral of (x - U)^2. So even bins wider than a step are priced right.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate import log_histogram
from lowbit.calibrate.sensitivity import BINS, Sensitivity, bin_edges
from lowbit.calibrate.statistics import TensorStats
from lowbit.errors import CalibrationError
from lowbit.ops.curves import Function

DoubleArray = NDArray[np.float64]

# Numbers that are computed with at once: what is larger does not stay in the cache.
_AT_ONCE = 1 << 14

_BINS_OF_OCTAVE = 8
# A function's slope is taken over this share of its argument; where its mean square is less, it is flat.
_NEAR, _FLAT = 0.01, 1e-3
# Of more values than these that were counted, some are in rows that gradients were taken of.
_FEW = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Density:
    """Bins ``[start, end]`` in ascending order with their weights; zeros apart."""

    start: DoubleArray
    end: DoubleArray
    weight: DoubleArray
    zeros: float

    @classmethod
    def of(cls, stats: TensorStats, name: str = "a tensor", *, absolute: bool = False) -> Density:
        """Return the density of a log histogram, cut to the range that was seen.

        ``absolute`` gives the density of the absolute values instead.
        """
        if stats.counts is None:
            raise CalibrationError(
                f"the statistics of {name!r} have no histogram, which this method needs; "
                "collect them again"
            )
        bins, edges = log_histogram.BINS, log_histogram.edges()
        negative, positive = stats.counts[:bins][::-1], stats.counts[bins + 1 :]
        low, high = stats.low, stats.high
        if absolute:
            negative, positive = np.zeros_like(negative), negative + positive
            low, high = 0.0, max(abs(low), abs(high))
        # Whatever is beyond the last bin is counted in it.
        edges[-1] = max(edges[-1], abs(low), abs(high))
        at, minus = np.flatnonzero(positive), np.flatnonzero(negative)[::-1]
        start = np.concatenate((-edges[minus + 1], edges[at]))
        end = np.concatenate((-edges[minus], edges[at + 1]))
        weight = np.concatenate((negative[minus], positive[at])).astype(np.float64)
        start, end = np.clip(start, low, high), np.clip(end, low, high)
        return cls(start, end, weight, float(stats.counts[bins]))

    @property
    def total(self) -> float:
        """How many values there are."""
        return float(self.weight.sum() + self.zeros)

    def power(self) -> float:
        """Return the mean square of the values."""
        square = _mean_square(self.start, self.end)
        return float((self.weight * square).sum() / max(self.total, 1.0))

    @property
    def unit(self) -> float:
        """The unit in which errors of different tensors are compared."""
        return max(self.power(), 1e-30)

    def squared_error(self, scale: DoubleArray, low: DoubleArray, high: DoubleArray) -> DoubleArray:
        """Return the mean squared error for each candidate.

        A candidate is a step and the values of its smallest and its largest code.
        """
        scale, low, high = (np.asarray(v, np.float64)[:, None] for v in (scale, low, high))
        # What every candidate rounds to zero costs all of them the same: its own square.
        reach = np.maximum(np.abs(self.start), np.abs(self.end))
        lost = reach <= min(scale.min(), -2 * low.max(), 2 * high.min()) / 2
        constant = (self.weight * _mean_square(self.start, self.end))[lost].sum()
        start, end, weight = (v[~lost] for v in (self.start, self.end, self.weight))
        point = end <= start
        error = _integral(start[~point], end[~point], weight[~point], scale, low, high)
        if point.any():
            error += _at(start[point], scale, low, high) @ weight[point]
        return np.asarray((error + constant) / max(self.total, 1.0))

    def coarser(self, together: int) -> Density:
        """Return the density with ``together`` adjacent bins merged, for a quick first search."""
        if not len(self.start):
            return self
        apart = self.start[1:] > self.end[:-1]
        run = np.concatenate(([0], np.cumsum(apart)))  # bins adjoin within a run
        first = np.searchsorted(run, run)  # where each bin's run begins
        cuts = np.flatnonzero((np.arange(len(run)) - first) % together == 0)
        last = np.append(cuts[1:], len(self.start)) - 1
        weight = np.add.reduceat(self.weight, cuts)
        return Density(self.start[cuts], self.end[last], weight, self.zeros)

    def quantile(self, fraction: float) -> float:
        """Return the value below which ``fraction`` of all values lie."""
        split = int(np.searchsorted(self.start, 0.0))
        weight = np.insert(self.weight, split, self.zeros)
        start, end = np.insert(self.start, split, 0.0), np.insert(self.end, split, 0.0)
        reached = np.cumsum(weight)
        wanted = fraction * reached[-1]
        k = min(int(np.searchsorted(reached, wanted)), len(weight) - 1)
        inside = (wanted - (reached[k] - weight[k])) / weight[k] if weight[k] else 1.0
        return float(start[k] + min(max(inside, 0.0), 1.0) * (end[k] - start[k]))

    def linear(self, edges: DoubleArray) -> DoubleArray:
        """Return the weight between given edges, each bin's spread evenly."""
        knots = np.stack((self.start, self.end), axis=1).reshape(-1)
        after = np.cumsum(self.weight)
        reached = np.stack((after - self.weight, after), axis=1).reshape(-1)
        below = np.interp(edges, knots, reached, left=0.0) if len(knots) else np.zeros(len(edges))
        return np.diff(below + self.zeros * (edges > 0))


@dataclasses.dataclass(frozen=True, slots=True)
class SensitiveDensity(Density):
    """A density whose errors are those of the outputs, by sensitivity: a sum, not a mean."""

    sensitivity: Sensitivity

    @classmethod
    def of_sensitivity(cls, stats: TensorStats, sensitivity: Sensitivity) -> SensitiveDensity:
        """Return the density of a tensor's sensitivity, cut to the observed range."""
        edges, density = bin_edges(), Density.of(stats)
        bins, is_negative = _bins_of(density)
        weight = density.weight * weights_of_errors(sensitivity, density)
        positive, negative = (
            np.bincount(bins[own], weight[own], BINS) for own in (~is_negative, is_negative)
        )
        # The first bin is of what is zero, and stays zero whatever the scale.
        at, minus = (np.flatnonzero(side[1:]) + 1 for side in (positive, negative))
        minus = minus[::-1]
        start = np.concatenate((-edges[minus + 1], edges[at]))
        end = np.concatenate((-edges[minus], edges[at + 1]))
        start, end = (np.clip(side, stats.low, stats.high) for side in (start, end))
        return cls(start, end, np.concatenate((negative[minus], positive[at])), 0.0, sensitivity)

    def squared_error(self, scale: DoubleArray, low: DoubleArray, high: DoubleArray) -> DoubleArray:
        """Return the error at the outputs for each candidate (see ``Density``).

        What is clipped adds up before it is squared, as the rows that gradients were taken of show. It costs no
        less than if it did not: of the largest values these rows hold few.
        """
        edges = bin_edges()[:-1]
        over, under = self.sensitivity.clipping
        above = np.interp(np.maximum(high, 0.0), edges, over)
        below = np.interp(np.maximum(-np.asarray(low), 0.0), edges, under)
        scale, low, high = (np.asarray(v, np.float64)[:, None] for v in (scale, low, high))
        width = np.maximum(self.end - self.start, 1e-300)
        first, last = (np.clip(side, low, high) for side in (self.start, self.end))
        inside = _rounding(last, scale) - _rounding(first, scale)
        point = self.end <= self.start
        error = inside / width
        if point.any():
            error = np.where(point, _at(first, scale, low, high), error)
        cut = _cube(self.end - high) - _cube(self.start - high)
        left = _cube(low - self.start) - _cube(low - self.end)
        apart_above, apart_below = (
            (side / (3 * width) * self.weight).sum(axis=1) for side in (cut, left)
        )
        clipped = np.maximum(above, apart_above) + np.maximum(below, apart_below)
        return np.asarray((error * self.weight).sum(axis=1) + clipped)

    @property
    def unit(self) -> float:
        """One: errors at the outputs are compared as they are."""
        return 1.0

    def coarser(self, together: int) -> SensitiveDensity:
        """Return the same: it has few bins."""
        del together
        return self


def weights_of_errors(
    sensitivity: Sensitivity, density: Density, curve: Function | None = None
) -> DoubleArray:
    """Return what a squared error counts at the outputs, for each bin of a density: of ``curve`` where it is given.

    Gradients were taken of few rows, which hold few of the largest values, while a density has values of all samples.
    So it is the mean of each power of two, and that of the next smaller values where so few were counted that no
    gradient may have been taken, or where the function is flat, of which gradients tell nothing.
    """
    edges, octaves = bin_edges(), BINS // _BINS_OF_OCTAVE + 2
    at, is_negative = _bins_of(density)
    found = np.zeros(len(at))
    for side, (own, sign) in enumerate(((~is_negative, 1.0), (is_negative, -1.0))):
        counts = np.bincount(at[own], density.weight[own], BINS)
        bins = np.flatnonzero(counts)
        octave = _octave_of(bins)
        middle = sign * (edges[bins] + edges[bins + 1]) / 2
        steep = np.ones(len(bins)) if curve is None else np.square(_slope(curve, middle))
        weights = sensitivity.squares[side, bins], counts[bins], counts[bins] * steep
        squares, count, seen = (np.bincount(octave, each, octaves) for each in weights)
        known = (seen > _FLAT * count) & ((squares > 0) | (count > _FEW))
        level = np.divide(squares, seen, out=np.zeros(octaves), where=known)
        found[own] = _from_below(level, known)[_octave_of(at[own])]
    return found


def _octave_of(bins: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the power of two of bins; the first, that of zero, is one by itself."""
    return -(-bins // _BINS_OF_OCTAVE)


def _bins_of(density: Density) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the sensitivity's bin of each bin of a density, and whether it is one of negative numbers."""
    middle = (density.start + density.end) / 2
    return np.searchsorted(bin_edges(), np.abs(middle), side="right") - 1, middle < 0


def _slope(curve: Function, x: DoubleArray) -> DoubleArray:
    near = _NEAR * np.abs(x)
    return (curve(x + near) - curve(x - near)) / (2 * near)


def _from_below(level: DoubleArray, known: NDArray[np.bool_]) -> DoubleArray:
    """Return levels with that of the next smaller numbers, or else of the smallest, where none is known."""
    if not known.any():
        return np.zeros(len(level))
    first = int(np.argmax(known))
    before = np.maximum.accumulate(np.where(known, np.arange(len(level)), first))
    return np.asarray(level[before])


def _mean_square(a: DoubleArray, b: DoubleArray) -> DoubleArray:
    """Return the mean of x squared over each interval from ``a`` to ``b``."""
    return np.asarray((a * a + a * b + b * b) / 3)


def _integral(
    start: DoubleArray,
    end: DoubleArray,
    weight: DoubleArray,
    scale: DoubleArray,
    low: DoubleArray,
    high: DoubleArray,
) -> DoubleArray:
    """Return each candidate's squared error of all bins together.

    That of a bin is its density times the difference of one integral at its ends. Most ends are where the next bin
    starts, so the integral is taken once for both.
    """
    density = weight / (end - start)
    knots, at = np.unique(np.concatenate((start, end)), return_inverse=True)
    first, last = np.split(at, 2)
    factor = np.bincount(last, density, len(knots)) - np.bincount(first, density, len(knots))
    found = np.empty(len(scale))
    step = max(1, _AT_ONCE // max(len(knots), 1))
    for begin in range(0, len(found), step):
        some = slice(begin, begin + step)
        of_some = _antiderivative(knots, scale[some], low[some], high[some])
        # No matrix product: its rounding would depend on how many threads BLAS has.
        found[some] = np.einsum("cn,n->c", of_some, factor)
    return found


def _antiderivative(
    x: DoubleArray, scale: DoubleArray, low: DoubleArray, high: DoubleArray
) -> DoubleArray:
    """Return the integral of the squared error from 0 to ``x``, up to a constant."""
    inside = np.clip(x, low, high)
    outside = x - inside
    found = _rounding(inside, scale)
    cubes = outside * outside
    cubes *= outside
    cubes /= 3
    found += cubes
    return found


def _rounding(x: DoubleArray, scale: DoubleArray) -> DoubleArray:
    """Return the integral of the squared rounding error from 0 to ``x``, which is inside the codes."""
    u = x / scale
    n = np.rint(u)
    u -= n
    found = u * u
    found *= u
    found /= 3
    n /= 12
    found += n
    found *= scale**3
    return np.asarray(found)


def _cube(x: DoubleArray) -> DoubleArray:
    positive = np.maximum(x, 0.0)
    return positive * positive * positive


def _at(x: DoubleArray, scale: DoubleArray, low: DoubleArray, high: DoubleArray) -> DoubleArray:
    return np.asarray((x - np.clip(np.rint(x / scale) * scale, low, high)) ** 2)
