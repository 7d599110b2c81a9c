"""Observers: what the methods of calibration must know of a tensor, gathered sample by sample."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Literal

import numpy as np

from lowbit.calibrate import log_histogram
from lowbit.calibrate.growing import GrowingHistogram, Span
from lowbit.calibrate.pooled import Pools
from lowbit.calibrate.statistics import ChannelSums, TensorStats
from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    OutputMse,
    Percentile,
)
from lowbit.errors import CalibrationError, ConfigError
from lowbit.numerics.formats import FloatArray


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What must be measured of a tensor; its ``floor`` need not be."""

    histogram: bool = False
    growing: tuple[int, Span] | None = None
    average: float | Literal["mean"] | None = None
    channel_axis: int | None = None
    variances: bool = False
    floor: float | None = None

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the order of samples."""
        return self.growing is not None or self.average is not None

    @property
    def pools(self) -> bool:
        """Whether the largest value and the mean of each channel tell all."""
        more = self.histogram or self.ordered or self.variances
        return self.floor is not None and not more and self.channel_axis in (None, 1)

    def __or__(self, other: Need) -> Need:
        """Return the need of both; of two kinds of growing histogram only one can be had."""
        if self.growing and other.growing and self.growing != other.growing:
            raise CalibrationError(
                f"one tensor is asked for two growing histograms, {self.growing} and "
                f"{other.growing}; give the tensors that share it the same method"
            )
        return Need(
            histogram=self.histogram or other.histogram,
            growing=self.growing or other.growing,
            average=other.average if self.average is None else self.average,
            channel_axis=other.channel_axis if self.channel_axis is None else self.channel_axis,
            variances=self.variances or other.variances,
        )


def need_of(method: Method) -> Need:
    """Return what a method must know of a tensor."""
    match method:
        case MinMax(moving_average=constant):
            return Need(average=constant)
        case NonOverflow():
            return Need()
        case Percentile(histogram="growing", bins=bins, symmetric_range=absolute):
            return Need(growing=(bins, "absolute" if absolute else "symmetric"))
        case LayerwisePercentile(histogram="growing", bins=bins):
            return Need(growing=(bins, "absolute"))
        case Entropy(histogram="growing", bins=bins):
            return Need(growing=(bins, "symmetric"))
        case MinMse(histogram="growing", bins=bins):
            return Need(growing=(bins, "signed"))
        case Percentile() | LayerwisePercentile() | Entropy() | Distribution() | MinMse():
            return Need(histogram=True)
        case OutputMse():
            raise ConfigError("output is a method for weights, not for activations; take mse")
    raise TypeError(f"unknown method {method!r}")


# Values of one sample a histogram is taken of, and the fewest rows of it.
_ENOUGH, _LEAST_ROWS = 1 << 13, 4
_NOTHING = TensorStats(0.0, 0.0, 0)


class Measure:
    """Statistics that add up in any order; safe to feed from several threads."""

    def __init__(self, needs: Mapping[str, Need]) -> None:
        self._needs = needs
        self._stats: dict[str, TensorStats] = {}
        self._counters = {n: log_histogram.Counter() for n, need in needs.items() if need.histogram}
        self._channels: dict[str, ChannelSums] = {}
        self._lock = threading.Lock()

    def add(self, name: str, x: FloatArray) -> None:
        """Measure a tensor of one sample."""
        new = TensorStats.of(x, histogram=False, floor=self._needs[name].floor)
        if self._needs[name].histogram and new.count:
            self._counters[name].add(thinned(x))
        self._merge(name, new)

    def _merge(self, name: str, new: TensorStats) -> None:
        with self._lock:
            old = self._stats.get(name)
            self._stats[name] = new if old is None else old | new

    def add_pools(self, name: str, pools: Pools) -> None:
        """Take over what the graph measured of a tensor."""
        self._merge(name, pools.stats(self._needs[name].floor or 0.0))

    def result(self) -> dict[str, TensorStats]:
        """Return the statistics of all samples so far."""
        return {
            name: self._with_counts(name).with_channels(self._means(name)) for name in self._needs
        }

    def add_channels(self, name: str, part: ChannelSums) -> None:
        """Add the channel sums of one sample; to be called from one thread."""
        total, squares, positions = part
        if not np.isfinite(total).all():
            return
        nothing = np.zeros(total.shape), None if squares is None else np.zeros(total.shape), 0
        known, known_squares, before = self._channels.get(name, nothing)
        if squares is not None and known_squares is not None:
            np.add(known_squares, squares, out=known_squares)
        np.add(known, total, out=known)
        self._channels[name] = (known, known_squares, before + positions)

    def _means(self, name: str) -> TensorStats:
        total, squares, positions = self._channels.get(name, (None, None, 0))
        if total is None or positions == 0:
            return _NOTHING
        mean = total / positions
        spread = None
        if squares is not None:
            spread = np.maximum(squares / positions - mean * mean, 0.0)
        return TensorStats(0.0, 0.0, 0, channels=mean, positions=positions, variances=spread)

    def _with_counts(self, name: str) -> TensorStats:
        counts = self._counters[name].counts() if name in self._counters else None
        if counts is None:
            return self._stats[name]
        return dataclasses.replace(self._stats[name], counts=counts)


def thinned(x: FloatArray) -> FloatArray:
    """Return ``x``, or evenly spaced rows of it when one sample has more values than needed.

    Histograms and means of some ten thousand values a sample serve as well as those of a million
    and much faster; the range is always that of all values. What is taken depends on the shape
    of a single sample only, so the result does not depend on batching.
    """
    axis = {4: 2, 3: 1}.get(x.ndim)
    if axis is None or x.size == 0:
        return x
    step = min(x[0].size // _ENOUGH, x.shape[axis] // _LEAST_ROWS)
    return x if step < 2 else x[(slice(None),) * axis + (slice(step // 2, None, step),)]


class OrderedMeasure(Measure):
    """Statistics that depend on the order of samples; fed by one thread."""

    def __init__(self, needs: Mapping[str, Need]) -> None:
        super().__init__(needs)
        self._averaged = collections.Counter[str]()

    def add(self, name: str, x: FloatArray) -> None:
        """Measure a tensor of the next sample."""
        need = self._needs[name]
        new, finite = TensorStats.of(x, histogram=need.histogram), x
        if new.not_finite:
            finite = _without_infinities(x)
            broken = TensorStats.of(finite, histogram=need.histogram)
            new = dataclasses.replace(broken, not_finite=new.not_finite)
        old = self._stats.get(name, _NOTHING)
        if x.size == 0:
            self._stats[name] = old
            return
        growing, average = old.growing, old.average
        if need.growing is not None:
            bins, span = need.growing
            if growing is None:
                growing = GrowingHistogram.first(finite, bins, span)
            else:
                growing = growing.add(finite)
        if need.average is not None:
            self._averaged[name] += 1
            constant = 1 / self._averaged[name] if need.average == "mean" else need.average
            average = _follow(average, (new.low, new.high), constant)
        new = dataclasses.replace(old, growing=None, average=None) | new
        self._stats[name] = dataclasses.replace(new, growing=growing, average=average)


def _follow(
    old: tuple[float, float] | None, new: tuple[float, float], constant: float
) -> tuple[float, float]:
    if old is None:
        return new
    return old[0] + constant * (new[0] - old[0]), old[1] + constant * (new[1] - old[1])


def _without_infinities(x: FloatArray) -> FloatArray:
    finite = x[np.isfinite(x)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    return np.nan_to_num(x, nan=0.0, posinf=float(high), neginf=float(low))
