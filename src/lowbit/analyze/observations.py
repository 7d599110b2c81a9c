"""Observe the inputs of activation quantizers: range, clipping, rounding, channels, distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.analyze.quantizers import Quantizer
from lowbit.calibrate import log_histogram
from lowbit.calibrate.subsampling import subsampled
from lowbit.graph.session import Array
from lowbit.report.values import Histogram

_BINS = 96
_MOST_CODES = 255
_MOST_CHANNELS = 4096


class Observation:
    """One tensor over samples; large ones are subsampled, so ranges are those of the rows taken."""

    def __init__(self, quantizer: Quantizer) -> None:
        self._scale = quantizer.scale
        self._raw: log_histogram.Counts | None = None
        self._codes: NDArray[np.int64] | None = None
        self.low, self.high = np.inf, -np.inf
        self.signal = self.noise = self.clip_noise = 0.0
        self.count = self.clipped = 0
        self.channel_low: Array | None = None
        self.channel_high: Array | None = None

    def add(self, x: Array) -> None:
        """Add one sample."""
        x = np.asarray(subsampled(x), np.float32)
        if x.size == 0 or not np.isfinite(x).all():
            return
        self.low, self.high = min(self.low, float(x.min())), max(self.high, float(x.max()))
        self.count += x.size
        self.signal += float(np.sum(x * x, dtype=np.float64))
        self._add_noise(x)
        self._add_channels(x)
        raw = log_histogram.raw_counts(x)
        old = self._raw if self._raw is not None else raw[:0]
        longer, shorter = (raw, old) if len(raw) >= len(old) else (old, raw)
        longer[: len(shorter)] += shorter
        self._raw = longer

    @property
    def own_noise(self) -> float:
        """Noise as a share of the signal."""
        return self.noise / self.signal if self.signal else 0.0

    @property
    def reach(self) -> float:
        """The largest magnitude."""
        return max(abs(self.low), abs(self.high)) if self.count else 0.0

    def histogram(self) -> Histogram | None:
        """Return the distribution in equal bins over the range."""
        if self._raw is None or not self.low < self.high:
            return None
        counts, _ = log_histogram.fold(self._raw)
        edges = log_histogram.edges()
        middles = (edges[:-1] + edges[1:]) / 2
        values = np.concatenate([-middles[::-1], [0.0], middles])
        filled = counts > 0
        return weighted_histogram(values[filled], counts[filled], self.low, self.high)

    def quantized_histogram(self) -> Histogram | None:
        """Return the distribution of the quantized values in the same bins."""
        scale = self._scale
        if self._codes is None or scale is None or not self.low < self.high:
            return None
        zero, step = scale.zero_point.reshape(-1)[0], scale.scale.reshape(-1)[0]
        values = (np.arange(scale.low, scale.high + 1) - zero) * step
        return weighted_histogram(values, self._codes, self.low, self.high)

    def _add_codes(self, codes: Array) -> None:
        """Count the integers, unless there are too many to plot."""
        scale = self._scale
        if scale is None or scale.high - scale.low > _MOST_CODES:
            return
        count = scale.high - scale.low + 1
        found = np.bincount(codes.reshape(-1).astype(np.int64) - scale.low, minlength=count)
        self._codes = found if self._codes is None else self._codes + found

    def _add_noise(self, x: Array) -> None:
        scale = self._scale
        if scale is None or scale.scale.size > 1:
            return
        low, high = scale.limits
        step, zero = float(scale.scale.reshape(-1)[0]), float(scale.zero_point.reshape(-1)[0])
        inside = np.clip(x, low, high)
        codes = np.clip(np.rint(x / np.float32(step)) + np.float32(zero), scale.low, scale.high)
        self._add_codes(codes)
        error = x - (codes - np.float32(zero)) * np.float32(step)
        beyond = x - inside
        self.noise += float(np.sum(error * error, dtype=np.float64))
        self.clip_noise += float(np.sum(beyond * beyond, dtype=np.float64))
        self.clipped += int(np.count_nonzero(np.abs(beyond) > step / 2))

    def _add_channels(self, x: Array) -> None:
        axis = {4: 1, 5: 1}.get(x.ndim, x.ndim - 1)
        if x.ndim < 2 or not 1 < x.shape[axis] <= _MOST_CHANNELS:
            return
        others = tuple(a for a in range(x.ndim) if a != axis)
        low, high = x.min(axis=others), x.max(axis=others)
        if self.channel_low is None or self.channel_high is None:
            self.channel_low, self.channel_high = low, high
        elif self.channel_low.shape == low.shape:
            self.channel_low = np.minimum(self.channel_low, low)
            self.channel_high = np.maximum(self.channel_high, high)


def weighted_histogram(values: Array, counts: Array, low: float, high: float) -> Histogram:
    """Return how often values come, in equal bins; what is beyond an end counts there."""
    bins, _ = np.histogram(np.clip(values, low, high), _BINS, (low, high), weights=counts)
    return Histogram(low=low, high=high, counts=tuple(int(n) for n in bins))
