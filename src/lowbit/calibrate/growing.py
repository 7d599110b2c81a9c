"""Equal bins over the first sample's range, continued outwards for larger samples.

The histograms of onnxruntime's calibrators, which AMD Quark builds on. They depend on the order of
samples; they are here so that Quark's presets give Quark's numbers.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lowbit.calibrate.binning import count_between
from lowbit.errors import CalibrationError
from lowbit.numerics.formats import FloatArray

# Bins are as wide as the first sample makes them; this many more take 64 MB.
_MOST_BINS = 1 << 23

Span = Literal["absolute", "symmetric", "signed"]
"""What is counted: |x|; x between -t and t; x between its own smallest and largest."""


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
        width = 2 * old_top / len(self.counts)
        self._refuse_too_many((new_top - old_top) / width)
        extra = int((new_top - old_top) // width + 1)
        top = extra * width + old_top
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
                "sample's, which sets the width of all bins; put a typical sample first, or take "
                "a method with a 'log' histogram"
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
