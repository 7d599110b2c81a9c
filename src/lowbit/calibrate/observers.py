"""Observers: collect, sample by sample, the statistics that calibration methods need."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Mapping
from typing import Literal, Protocol

import numpy as np

from lowbit.calibrate import log_histogram
from lowbit.calibrate.channels import ChannelAdder, ChannelSums
from lowbit.calibrate.pooled import Pools
from lowbit.calibrate.statistics import CustomStatistics, TensorStats
from lowbit.calibrate.subsampling import subsampled, thinned
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


class CustomObserver(Protocol):
    """A value that says how statistics of one's own begin; equal values observe the same."""

    def start(self, x: FloatArray) -> CustomStatistics:
        """Return the statistics of the first sample's tensor."""


@dataclasses.dataclass(frozen=True, slots=True)
class ObserverSpec:
    """Which statistics of a tensor are collected.

    Attributes:
        histogram: The log histogram.
        custom: Statistics of a method's own, which may depend on the order of samples.
        average: The range by a moving average, or the mean of the samples' ranges.
        channel_axis: Where the channels lie whose means are taken.
        variances: Whether the channels' variances are taken as well.
        floor: A bound that the graph sets to the smallest value, which then is not looked for.
    """

    histogram: bool = False
    custom: CustomObserver | None = None
    average: float | Literal["mean"] | None = None
    channel_axis: int | None = None
    variances: bool = False
    floor: float | None = None

    @property
    def ordered(self) -> bool:
        """Whether the result depends on the order of samples."""
        return self.custom is not None or self.average is not None

    @property
    def is_map(self) -> bool:
        """Whether the last axes of a tensor of four are those of positions, as a layer reads its channels before."""
        return self.channel_axis == 1

    @property
    def pools(self) -> bool:
        """Whether the range and the mean of each channel are all that is needed."""
        return self.pools_but_rows and not self.histogram

    @property
    def pools_but_rows(self) -> bool:
        """Whether they are all that is needed but the histogram, which some rows are enough for."""
        more = self.ordered or self.variances
        return not more and self.channel_axis in (None, 1)

    def __or__(self, other: ObserverSpec) -> ObserverSpec:
        """Return what both observe; of two kinds of custom statistics only one can be had."""
        if self.custom and other.custom and self.custom != other.custom:
            raise CalibrationError(
                f"one tensor is asked for two kinds of statistics, {self.custom} and "
                f"{other.custom}; give the tensors that share it the same method"
            )
        return ObserverSpec(
            histogram=self.histogram or other.histogram,
            custom=self.custom or other.custom,
            average=other.average if self.average is None else self.average,
            channel_axis=other.channel_axis if self.channel_axis is None else self.channel_axis,
            variances=self.variances or other.variances,
        )


def observer_of(method: Method) -> ObserverSpec:
    """Return the statistics that a method needs of a tensor."""
    match method:
        case MinMax(moving_average=constant):
            return ObserverSpec(average=constant)
        case NonOverflow():
            return ObserverSpec()
        case Percentile() | LayerwisePercentile() | Entropy() | Distribution() | MinMse():
            return ObserverSpec(histogram=True)
        case OutputMse():
            raise ConfigError("method output is for weights, not for activations; take mse")
    spec: ObserverSpec = method.observer()
    return spec


_NOTHING = TensorStats(0.0, 0.0, 0)


class Observer:
    """Statistics that add up in any order; safe to feed from several threads."""

    def __init__(self, specs: Mapping[str, ObserverSpec]) -> None:
        self._specs = specs
        self._stats: dict[str, TensorStats] = {}
        counted = [name for name, spec in specs.items() if spec.histogram]
        together = log_histogram.values_together(len(counted))
        self._counters = {name: log_histogram.Counter(together) for name in counted}
        self._channels = ChannelAdder()
        self._lock = threading.Lock()

    def add(self, name: str, x: FloatArray) -> None:
        """Observe a tensor of one sample."""
        new = TensorStats.of(x, histogram=False, floor=self._specs[name].floor)
        if self._specs[name].histogram and new.count:
            is_map = self._specs[name].is_map
            self._counters[name].add(thinned(x) if is_map else subsampled(x))
        self._merge(name, new)

    def _merge(self, name: str, new: TensorStats) -> None:
        with self._lock:
            old = self._stats.get(name)
            self._stats[name] = new if old is None else old | new

    def add_pools(self, name: str, pools: Pools) -> None:
        """Add what the graph measured of a tensor."""
        self._merge(name, pools.stats(self._specs[name].floor or 0.0))

    def add_rows(self, name: str, rows: FloatArray) -> None:
        """Count what the graph took of a tensor whose range it measured."""
        self._counters[name].add(rows)

    def result(self) -> dict[str, TensorStats]:
        """Return the statistics of all samples so far."""
        totals = self._channels.totals()
        return {
            name: dataclasses.replace(self._with_counts(name), totals=totals.get(name))
            for name in self._specs
        }

    def add_channels(self, sample: Mapping[str, ChannelSums]) -> None:
        """Add the channel sums of one sample, except for those that are not finite."""
        self._channels.add(sample)

    def _with_counts(self, name: str) -> TensorStats:
        counts = self._counters[name].counts() if name in self._counters else None
        if counts is None:
            return self._stats[name]
        return dataclasses.replace(self._stats[name], counts=counts)


class OrderedObserver(Observer):
    """Statistics that depend on the order of samples; fed by one thread."""

    def __init__(self, specs: Mapping[str, ObserverSpec]) -> None:
        super().__init__(specs)
        self._averaged = collections.Counter[str]()

    def add(self, name: str, x: FloatArray) -> None:
        """Observe a tensor of the next sample."""
        spec = self._specs[name]
        new, finite = TensorStats.of(x, histogram=spec.histogram), x
        if new.not_finite:
            finite = _without_infinities(x)
            broken = TensorStats.of(finite, histogram=spec.histogram)
            new = dataclasses.replace(broken, not_finite=new.not_finite)
        old = self._stats.get(name, _NOTHING)
        if x.size == 0:
            self._stats[name] = old
            return
        custom, average = old.custom, old.average
        if spec.custom is not None:
            custom = spec.custom.start(finite) if custom is None else custom.add(finite)
        if spec.average is not None:
            self._averaged[name] += 1
            constant = 1 / self._averaged[name] if spec.average == "mean" else spec.average
            average = _follow(average, (new.low, new.high), constant)
        new = dataclasses.replace(old, custom=None, average=None) | new
        self._stats[name] = dataclasses.replace(new, custom=custom, average=average)


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
