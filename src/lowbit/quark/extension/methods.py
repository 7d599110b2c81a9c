"""AMD Quark's calibration methods: onnxruntime's histograms, and its searches over them.

The histograms have equal bins over the first sample's range, continued outwards for larger samples.
They depend on the order of samples; they are here so that Quark's configurations give Quark's numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate.observers import ObserverSpec
from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import Method
from lowbit.config.specs import IntegerSpec
from lowbit.errors import CalibrationError
from lowbit.numerics.affine import QParams, power_of_two_qparams
from lowbit.numerics.formats import FloatArray
from lowbit.scales.ranges import (
    Range,
    entropy_window,
    error_at,
    params_of_range,
    power_of_two_of_range,
)
from lowbit.scales.weights import best_power_of_two

# Values counted at once: what is made of them stays in the cache.
_BLOCK = 1 << 16
# A float32 product is off by less than this, relatively.
_ROUNDING = 2.0**-21
# Edges further from even than this, in bins, are left to NumPy.
_UNEVEN = 0.4
# Bins are as wide as the first sample makes them; this many more take 64 MB.
_MOST_BINS = 1 << 23

Span = Literal["absolute", "symmetric", "signed"]
"""The histogrammed values: |x|; x between -t and t; x between its own smallest and largest."""


@dataclasses.dataclass(frozen=True, slots=True)
class GrowingHistogram:
    """Counts between edges, with the smallest and largest value seen."""

    span: Span
    counts: NDArray[np.int64]
    edges: NDArray[np.floating]
    low: float
    high: float

    @classmethod
    def first(cls, x: FloatArray, bins: int, span: Span) -> GrowingHistogram:
        """Start with the range of the first sample."""
        low, high = x.min(), x.max()
        match span:
            case "absolute":
                x = _magnitudes(x, low)
                edges = np.histogram_bin_edges(x, bins)
                counts = count_between(x, edges)
            case "symmetric":
                counts, edges = _between(x, bins, np.maximum(np.abs(low), np.abs(high)))
            case "signed":
                edges = np.histogram_bin_edges(np.array([low, high], np.float64), bins)
                counts = count_between(x, edges)
        return cls(span, counts, edges, float(low), float(high))

    def add(self, x: FloatArray) -> GrowingHistogram:
        """Return the histogram with one more sample counted."""
        low, high = x.min(), x.max()
        match self.span:
            case "absolute":
                counts, edges = self._extend_up(_magnitudes(x, low))
            case "symmetric":
                counts, edges = self._extend_both(x, np.maximum(np.abs(low), np.abs(high)))
            case "signed":
                counts, edges = self._extend_either(x, float(low), float(high))
        low, high = min(self.low, float(low)), max(self.high, float(high))
        return GrowingHistogram(self.span, counts, edges, low, high)

    def _extend_up(self, x: FloatArray) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        edges, top = self.edges, x.max()
        if top > edges[-1]:
            width = edges[1] - edges[0]
            self._refuse_too_many((top - edges[-1]) / width)
            more = np.arange(edges[-1] + width, top + width, width)
            edges = np.hstack((edges, more))
        counts = count_between(x, edges)
        counts[: len(self.counts)] += self.counts
        return counts, edges.astype(x.dtype)

    def _extend_both(
        self, x: FloatArray, new_top: np.floating
    ) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        old_top = self.edges[-1]
        if self.low == self.high == 0.0:
            # The first samples were all zeros, so their bins have no width to continue.
            counts, edges = _between(x, len(self.counts), new_top)
            return counts + self.counts, edges
        if new_top <= old_top:
            counts, _ = _between(x, len(self.counts), old_top)
            return counts + self.counts, self.edges
        # Whole numbers as floats of one type: what NumPy 1 and 2 make of a mixture differs.
        kind = type(old_top)
        width = kind(2) * old_top / kind(len(self.counts))
        self._refuse_too_many((new_top - old_top) / width)
        extra = int((new_top - old_top) // width + kind(1))
        top = kind(extra) * width + old_top
        counts, edges = _between(x, len(self.counts) + 2 * extra, top)
        counts[extra : len(counts) - extra] += self.counts
        return counts, edges

    def _extend_either(
        self, x: FloatArray, low: float, high: float
    ) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
        edges = self.edges
        width = (edges[-1] - edges[0]) / len(self.counts)
        self._refuse_too_many(max(edges[0] - low, high - edges[-1]) / width)
        below = int(np.ceil((edges[0] - low) / width)) if low < edges[0] else 0
        above = int(np.ceil((high - edges[-1]) / width)) if high > edges[-1] else 0
        if below or above:
            edges = np.linspace(
                edges[0] - below * width,
                edges[-1] + above * width,
                len(self.counts) + below + above + 1,
            )
        counts = count_between(x, edges)
        counts[below : below + len(self.counts)] += self.counts
        return counts, edges

    def _refuse_too_many(self, more: float) -> None:
        if more > _MOST_BINS:
            raise CalibrationError(
                f"a sample's values are {more / len(self.counts):.0f} times as wide as the first "
                "sample's, which sets the width of all bins; put a typical sample first"
            )


def _magnitudes(x: FloatArray, low: np.floating) -> FloatArray:
    return x if low >= 0 else np.abs(x)


def _between(
    x: FloatArray, bins: int, top: np.floating
) -> tuple[NDArray[np.int64], NDArray[np.floating]]:
    """Return counts and edges of equal bins between ``-top`` and ``top``."""
    limits: Any = (-top, top)  # as NumPy's scalars: edges are of their type
    edges = np.histogram_bin_edges(x.reshape(-1)[:0], bins, range=limits)
    return count_between(x, edges), edges


def count_between(x: FloatArray, edges: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return ``numpy.histogram(x, edges)[0]``, for finite ``x``, but faster.

    NumPy sorts values to count them between given edges. Where the edges are even, a multiplication
    tells the bin but for rounding: it is made to err downwards only, and what lies above its bin's
    upper edge moves up by one.
    """
    # As NumPy's scalars: a plain float would be rounded to float32 where it meets one.
    bins, low, high = len(edges) - 1, np.float64(edges[0]), np.float64(edges[-1])
    if x.dtype != np.float32 or x.size == 0 or not high > low:
        return np.histogram(x, edges)[0]
    per_value = bins / (high - low)
    exact = edges.astype(np.float64)
    even = (exact - low) * per_value
    reach = bins + abs(low) * per_value
    error = float(np.max(np.abs(even - np.arange(bins + 1)))) + reach * _ROUNDING
    if error > _UNEVEN:
        return np.histogram(x, edges)[0]
    x = x.reshape(-1)
    if x.min() < low or x.max() > high:
        x = x[(x >= exact[:1]) & (x <= exact[-1:])]  # arrays: NumPy 1 rounds a scalar to float32
    upper = _rounded_up(edges[1:])
    upper[-1] = np.inf  # what lies on the last edge belongs to the last bin
    return _count(x, np.float32(per_value), np.float32(-low * per_value - error), upper)


def _count(
    x: FloatArray, slope: np.float32, offset: np.float32, upper: NDArray[np.float32]
) -> NDArray[np.int64]:
    bins = len(upper)
    counts = np.zeros(bins + 1, np.int64)
    size = min(_BLOCK, x.size)
    shares, near = np.empty(size, np.float32), np.empty(size, np.float32)
    index = np.empty(size, np.intp)
    for start in range(0, x.size, _BLOCK):
        block = x[start : start + _BLOCK]
        share, above, at = shares[: block.size], near[: block.size], index[: block.size]
        np.multiply(block, slope, out=share)
        np.add(share, offset, out=share)
        np.copyto(at, share, casting="unsafe")
        np.take(upper, at, out=above, mode="clip")
        moved = at[block >= above]
        counts += np.bincount(at, minlength=bins + 1)
        if moved.size:
            moves = np.bincount(moved, minlength=bins)
            counts[:-1] -= moves
            counts[1:] += moves
    return counts[:-1]


def _rounded_up(edges: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the least float32 not below each edge: no float32 lies between the two."""
    near = edges.astype(np.float32)
    return np.where(near < edges, np.nextafter(near, np.float32(np.inf)), near)


@dataclasses.dataclass(frozen=True, slots=True)
class GrowingObserver:
    """Begins a histogram with the first sample."""

    bins: int
    span: Span

    def start(self, x: FloatArray) -> GrowingHistogram:
        """Return the histogram of the first sample."""
        return GrowingHistogram.first(x, self.bins, self.span)


class _QuarkMethod(Method, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common settings of the methods below."""

    rounds_to_nearest: ClassVar[bool] = True


class QuarkPercentile(_QuarkMethod, frozen=True, kw_only=True, tag="quark-percentile"):
    """Percentile over absolute values, or over both sides if not ``symmetric_range``."""

    percentile: float = 99.999
    bins: int = 2048
    symmetric_range: bool = True

    def observer(self) -> ObserverSpec:
        """Return a histogram of what the percentile is taken of."""
        span: Span = "absolute" if self.symmetric_range else "symmetric"
        return ObserverSpec(custom=GrowingObserver(self.bins, span))

    def range_of(self, statistics: TensorStats, spec: Any, name: str) -> Range:
        """Return the range between the edges of the percentile's bins."""
        del spec
        histogram = _histogram(statistics, name)
        return _percentile(histogram, self.percentile, symmetric=self.symmetric_range)


class QuarkEntropy(_QuarkMethod, frozen=True, kw_only=True, tag="quark-entropy"):
    """The window of least divergence over a few bins."""

    bins: int = 128
    levels: int = 128

    def observer(self) -> ObserverSpec:
        """Return a histogram around zero."""
        return ObserverSpec(custom=GrowingObserver(self.bins, "symmetric"))

    def range_of(self, statistics: TensorStats, spec: Any, name: str) -> Range:
        """Return the range of the best window."""
        del spec
        histogram = _histogram(statistics, name)
        start, end = entropy_window(histogram.counts, self.levels)
        low, high = float(histogram.edges[start]), float(histogram.edges[end])
        return max(low, histogram.low), min(high, histogram.high)


class QuarkMinMse(_QuarkMethod, frozen=True, kw_only=True, tag="quark-mse"):
    """The best of five power-of-two scales around the range's own, errors taken at bin centres."""

    bins: int = 2048

    def observer(self) -> ObserverSpec:
        """Return a histogram between the smallest and the largest value."""
        return ObserverSpec(custom=GrowingObserver(self.bins, "signed"))

    def parameters_of(self, statistics: TensorStats, spec: IntegerSpec, name: str) -> QParams:
        """Return the best of the five."""
        histogram = _histogram(statistics, name)
        centres = (histogram.edges[:-1] + histogram.edges[1:]) / 2
        tried = [
            power_of_two_qparams(bits, spec.format)
            for bits in _five((histogram.low, histogram.high), spec)
        ]
        errors = [error_at(centres, histogram.counts, p, spec, power=2) for p in tried]
        return tried[int(np.argmin(errors))]

    def weight_parameters_of(self, data: FloatArray, spec: IntegerSpec) -> QParams:
        """Return the best of the five for the values themselves."""
        limits = (float(data.min()), float(data.max())) if data.size else (0.0, 0.0)
        return best_power_of_two(data, spec, _five(limits, spec))


class QuarkLayerwisePercentile(_QuarkMethod, frozen=True, kw_only=True, tag="quark-layerwise"):
    """The percentile among ``candidates`` with the least error at bin centres."""

    candidates: tuple[float, ...] = (99.99, 99.999, 99.99999)
    metric: Literal["mae", "mse"] = "mae"
    bins: int = 2048

    def observer(self) -> ObserverSpec:
        """Return a histogram of absolute values."""
        return ObserverSpec(custom=GrowingObserver(self.bins, "absolute"))

    def parameters_of(self, statistics: TensorStats, spec: IntegerSpec, name: str) -> QParams:
        """Return the parameters of the best percentile."""
        histogram = _histogram(statistics, name)
        centres = (histogram.edges[1:] + histogram.edges[:-1]) / 2
        weights = histogram.counts.astype(np.float64)
        ranges = [_percentile(histogram, p, symmetric=True) for p in self.candidates]
        tried = [params_of_range(limits, spec) for limits in ranges]
        power = 1 if self.metric == "mae" else 2
        errors = [error_at(centres, weights, p, spec, power=power) for p in tried]
        return tried[int(np.argmin(errors))]


def _histogram(statistics: TensorStats, name: str) -> GrowingHistogram:
    if not isinstance(statistics.custom, GrowingHistogram):
        raise CalibrationError(
            f"the statistics of {name!r} lack the histogram this method reads; collect them again"
        )
    return statistics.custom


def _percentile(histogram: GrowingHistogram, percent: float, *, symmetric: bool) -> Range:
    reached = np.cumsum(histogram.counts / histogram.counts.sum())
    edges, last = histogram.edges, len(histogram.edges) - 1
    if symmetric:
        edge = float(edges[min(int(np.searchsorted(reached, percent / 100)), last)])
        low, high = -edge, edge
    else:
        cut = (100 - percent) / 200
        low = float(edges[int(np.searchsorted(reached, cut))])
        high = float(edges[min(int(np.searchsorted(reached, 1 - cut)), last)])
    return max(low, histogram.low), min(high, histogram.high)


def _five(limits: Range, spec: IntegerSpec) -> list[int]:
    """Return the fraction bits of the scales that are tried for a range."""
    start = power_of_two_of_range(limits, spec, nearest=True).fraction_bits
    return [start + i - 1 for i in range(5)]
