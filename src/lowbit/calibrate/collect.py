"""Run the data through the model once and keep statistics, never the tensors themselves.

Samples run in parallel, one a thread, each thread with a single-threaded session: that scales
better than threads inside an operator, and the statistics of a sample are taken by the thread
that computed it. Peak memory is that of ``threads`` samples, however many there are.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np
import onnx_ir as ir

from lowbit.calibrate import loghistogram
from lowbit.calibrate.growing import GrowingHistogram, Span
from lowbit.calibrate.pooled import Pools, add_pools, poolable, pools_of
from lowbit.calibrate.stats import ChannelSums, Stats, TensorStats, channel_sums
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
from lowbit.config.specs import FloatSpec, TensorSpec
from lowbit.errors import CalibrationError, ConfigError
from lowbit.graph.names import tensor_name
from lowbit.graph.session import Array, Feed, Optimise, Session, opened, with_outputs
from lowbit.numerics.formats import Floats
from lowbit.ops import clip_bounds
from lowbit.plan.plan import Plan

Progress = Callable[[int], None]
S = TypeVar("S")
T = TypeVar("T")

# Threads are added only while their samples' tensors stay within this, in bytes.
_MEMORY_FOR_TENSORS = 256 << 20
# Values of one sample a histogram is taken of, and the fewest rows of it.
_ENOUGH, _LEAST_ROWS = 1 << 13, 4
_NOTHING = TensorStats(0.0, 0.0, 0)


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


def collect(
    model: ir.Model,
    plan: Plan,
    data: Iterable[Feed],
    *,
    everything: bool = False,
    means: bool = True,
    twins: Mapping[str, str] = MappingProxyType({}),
    threads_per_sample: int = 1,
    optimise: Optimise = "none",
    progress: Progress = lambda _: None,
) -> Stats:
    """Return the statistics that ``plan`` needs of the activations of ``model``.

    ``everything`` keeps histograms of all planned tensors, so that saved statistics serve any
    method later. ``means`` keeps the channel means that bias correction reads, those
    of ``twins`` (float counterparts, by tensor) too. ``progress`` is told after each sample how
    many are done. The number of threads
    that share one sample changes float sums in their last bit, and so ranges; leave it at one
    for speed.
    """
    needs = _needs(plan, twins, everything=everything, means=means or everything)
    if not needs:
        return Stats({}, 0)
    floors = _floors(model.graph)
    needs = {n: dataclasses.replace(need, floor=floors.get(n)) for n, need in needs.items()}
    positions = poolable(model.graph)
    pooled = {n: positions[n] for n, need in needs.items() if need.pools and n in positions}
    probe = with_outputs(model, [n for n in needs if n not in pooled])
    add_pools(probe.graph, pooled)
    with opened(
        probe,
        threads=threads_per_sample,
        optimise=optimise,
        name="the model for calibration",
    ) as running:
        ordered = any(need.ordered for need in needs.values())
        measure = _OrderedMeasure(needs) if ordered else _Measure(needs)
        samples = _run_all(running, needs, pooled, data, measure, progress, parallel=not ordered)
    if samples == 0:
        raise CalibrationError("the data holds no samples; at least one is needed")
    return Stats(measure.result(), samples)


def _needs(
    plan: Plan, twins: Mapping[str, str], *, everything: bool, means: bool
) -> dict[str, Need]:
    needs: dict[str, Need] = {}

    def want(name: str, need: Need) -> None:
        needs[name] = needs.get(name, Need()) | need

    for tensor in plan.activations():
        if tensor.is_calibrated and isinstance(tensor.spec, (TensorSpec, FloatSpec)):
            want(tensor.observe, need_of(tensor.spec.method))
    if everything:
        for name in (*needs, *(t.name for t in plan.activations())):
            want(name, Need(histogram=True))
    for row in plan.biases if means else ():
        for name in (row.input, twins.get(row.input, row.input)):
            want(name, Need(channel_axis=row.channel_axis))
    specs = plan.by_name()
    for row in plan.biases:
        weight = specs.get(row.weight)
        if weight and isinstance(getattr(weight.spec, "method", None), OutputMse):
            want(row.input, Need(channel_axis=row.channel_axis, variances=True))
    return needs


def _floors(graph: ir.Graph) -> dict[str, float]:
    """Return the tensors that a Relu or Clip keeps at or above zero.

    Every range is made to hold zero, so their least value decides nothing and is not looked for:
    in a network of ReLUs that is a third of the time that ranges take.
    """
    return {
        tensor_name(node.outputs[0]): 0.0
        for node in graph
        if node.op_type in ("Relu", "Clip")
        and (low := clip_bounds(node)[0]) is not None
        and low >= 0.0
    }


class _Measure:
    """Statistics that add up in any order; safe to feed from several threads."""

    def __init__(self, needs: Mapping[str, Need]) -> None:
        self._needs = needs
        self._stats: dict[str, TensorStats] = {}
        self._counters = {n: loghistogram.Counter() for n, need in needs.items() if need.histogram}
        self._channels: dict[str, ChannelSums] = {}
        self._lock = threading.Lock()

    def add(self, name: str, x: Floats) -> None:
        new = TensorStats.of(x, histogram=False, floor=self._needs[name].floor)
        if self._needs[name].histogram and new.count:
            self._counters[name].add(thinned(x))
        self._merge(name, new)

    def _merge(self, name: str, new: TensorStats) -> None:
        with self._lock:
            old = self._stats.get(name)
            self._stats[name] = new if old is None else old | new

    def add_pools(self, name: str, pools: Pools) -> None:
        self._merge(name, pools.stats(self._needs[name].floor or 0.0))

    def result(self) -> dict[str, TensorStats]:
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


def thinned(x: Floats) -> Floats:
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


class _OrderedMeasure(_Measure):
    """Statistics that depend on the order of samples; fed by one thread."""

    def __init__(self, needs: Mapping[str, Need]) -> None:
        super().__init__(needs)
        self._averaged = collections.Counter[str]()

    def add(self, name: str, x: Floats) -> None:
        need = self._needs[name]
        finite = _without_infinities(x)
        new = TensorStats.of(finite, histogram=need.histogram)
        if finite is not x:
            new = dataclasses.replace(new, not_finite=int((~np.isfinite(x)).sum()))
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


def _without_infinities(x: Floats) -> Floats:
    if np.isfinite(x).all():
        return x
    finite = x[np.isfinite(x)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    return np.nan_to_num(x, nan=0.0, posinf=float(high), neginf=float(low))


def _run_all(
    running: Session,
    needs: Mapping[str, Need],
    pooled: Mapping[str, int],
    data: Iterable[Feed],
    measure: _Measure,
    progress: Progress,
    *,
    parallel: bool,
) -> int:
    """Run every sample and measure it; return how many there were."""
    whole = [name for name in needs if name not in pooled]
    outputs = [*whole, *(output for name in pooled for output in pools_of(name))]
    # Each holds the tensors of a sample, so there are only as many as run at once.
    idle = collections.deque[Callable[[Feed], list[Array]]]()

    def work(feed: Feed) -> tuple[int, dict[str, ChannelSums]]:
        try:
            run = idle.pop()
        except IndexError:
            run = running.repeated(outputs)
        arrays = dict(zip(outputs, run(feed), strict=True))
        size, sums = 0, dict[str, ChannelSums]()
        for name in whole:
            measure.add(name, arrays[name])
            size += arrays[name].nbytes
            axis = needs[name].channel_axis
            if axis is not None and arrays[name].ndim > 1:
                sums[name] = channel_sums(
                    thinned(arrays[name]), axis, squares=needs[name].variances
                )
        for name, positions in pooled.items():
            highest, mean = (arrays[output] for output in pools_of(name))
            pools = Pools(highest, mean, positions)
            measure.add_pools(name, pools)
            size += pools.nbytes
            if needs[name].channel_axis is not None:
                sums[name] = pools.sums()
        idle.append(run)
        return size, sums

    samples = 0
    feeds = iter(data)
    first = next(feeds, None)
    if first is None:
        return 0
    size, sums = work(first)
    threads = _thread_count(size) if parallel else 1
    done = itertools.chain([(size, sums)], bounded_map(work, feeds, threads))
    # Float sums are added up here, in the order of the samples: the result must not depend on
    # which thread was faster.
    for _, sums in done:
        for name, part in sums.items():
            measure.add_channels(name, part)
        progress(samples := samples + 1)
    return samples


def _thread_count(bytes_per_sample: int) -> int:
    fitting = _MEMORY_FOR_TENSORS // max(1, bytes_per_sample)
    return int(max(1, min(os.cpu_count() or 1, fitting)))


def bounded_map(work: Callable[[S], T], feeds: Iterator[S], threads: int) -> Iterator[T]:
    """Yield ``work(feed)`` in order, with at most ``threads`` running and one more feed read."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        pending: list[concurrent.futures.Future[T]] = []
        for feed in feeds:
            pending.append(pool.submit(work, feed))
            if len(pending) > threads:
                yield pending.pop(0).result()
        for future in pending:
            yield future.result()
