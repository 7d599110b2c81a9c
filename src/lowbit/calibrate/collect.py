"""Run the data through the model once and keep statistics, never the tensors themselves.

Samples run in parallel, one a thread, each thread with a single-threaded session: that scales
better than threads inside an operator, and the statistics of a sample are taken by the thread
that computed it. Peak memory is that of ``threads`` samples, however many there are.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.calibrate.observers import (
    Observer,
    ObserverSpec,
    OrderedObserver,
    observer_of,
    thinned,
)
from lowbit.calibrate.pooled import Pools, add_pools, poolable, pools_of
from lowbit.calibrate.statistics import ChannelSums, Stats, channel_sums
from lowbit.config.methods import OutputMse
from lowbit.errors import CalibrationError
from lowbit.graph.naming import tensor_name
from lowbit.graph.parts import PartwiseRun, is_large
from lowbit.graph.session import Array, Feed, Optimize, Session, opened, with_outputs
from lowbit.graph.store import open_store
from lowbit.numerics.formats import FloatArray
from lowbit.ops.traits import clip_bounds
from lowbit.parallel import ordered_map
from lowbit.planning.plan import Plan

Progress = Callable[[int], None]

_NAME = "the model for calibration"

# Threads are added only while their samples' tensors stay within this, in bytes.
_MEMORY_FOR_TENSORS = 256 << 20


def collect(
    model: ir.Model,
    plan: Plan,
    data: Iterable[Feed],
    *,
    everything: bool = False,
    means: bool = True,
    float_names: Mapping[str, str] = MappingProxyType({}),
    threads_per_sample: int = 1,
    optimize: Optimize = "none",
    progress: Progress = lambda _: None,
) -> Stats:
    """Return the statistics that ``plan`` asks for of the activations of ``model``.

    ``everything`` keeps histograms of all planned tensors and the variances of channels, so that
    saved statistics serve any method later. ``means`` keeps the channel means that bias correction reads, those
    of ``float_names`` (float counterparts, by tensor) too. ``progress`` is told after each sample how
    many are done. The number of threads
    that share one sample changes float sums in their last bit, and so ranges; leave it at one
    for speed.
    """
    specs = _observer_specs(plan, float_names, everything=everything, means=means or everything)
    if not specs:
        return Stats({}, 0)
    floors = _floors(model.graph)
    specs = {n: dataclasses.replace(spec, floor=floors.get(n)) for n, spec in specs.items()}
    ordered = any(spec.ordered for spec in specs.values())
    observer = OrderedObserver(specs) if ordered else Observer(specs)
    if is_large(model):
        probe = with_outputs(model, list(specs))
        samples = _run_in_parts(probe, specs, observer, data, optimize, progress)
    else:
        positions = poolable(model.graph)
        pooled = {n: positions[n] for n, spec in specs.items() if spec.pools and n in positions}
        probe = with_outputs(model, [n for n in specs if n not in pooled])
        add_pools(probe.graph, pooled)
        with opened(probe, threads=threads_per_sample, optimize=optimize, name=_NAME) as running:
            runner = _Runner(running, specs, pooled, observer)
            samples = _run_all(runner, data, progress, ordered=ordered)
    if samples == 0:
        raise CalibrationError("the data holds no samples; at least one is needed")
    return Stats(observer.result(), samples)


def _observer_specs(
    plan: Plan, float_names: Mapping[str, str], *, everything: bool, means: bool
) -> dict[str, ObserverSpec]:
    specs: dict[str, ObserverSpec] = {}

    def want(name: str, spec: ObserverSpec) -> None:
        specs[name] = specs.get(name, ObserverSpec()) | spec

    for tensor in plan.activations():
        if tensor.is_calibrated and (method := tensor.spec.calibration):
            want(tensor.observe, observer_of(method))
    if everything:
        for name in (*specs, *(t.name for t in plan.activations())):
            want(name, ObserverSpec(histogram=True))
    for row in plan.biases if means else ():
        for name in (row.input, float_names.get(row.input, row.input)):
            want(name, ObserverSpec(channel_axis=row.channel_axis, variances=everything))
    tensors = plan.by_name()
    for row in plan.biases:
        weight = tensors.get(row.weight)
        if weight and isinstance(weight.spec.calibration, OutputMse):
            want(row.input, ObserverSpec(channel_axis=row.channel_axis, variances=True))
    return specs


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


_Observed = tuple[int, dict[str, ChannelSums]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    """What one run gave, in arrays that the next run of the same ``source`` overwrites."""

    arrays: Mapping[str, FloatArray]
    source: Callable[[Feed], list[Array]]


class _Runner:
    """Runs samples and observes their tensors."""

    def __init__(
        self,
        running: Session,
        specs: Mapping[str, ObserverSpec],
        pooled: Mapping[str, int],
        observer: Observer,
    ) -> None:
        self._running, self._specs, self._pooled = running, specs, pooled
        self.observer = observer
        self._whole = [name for name in specs if name not in pooled]
        self._outputs = [*self._whole, *(out for name in pooled for out in pools_of(name))]
        # Each holds the tensors of a sample, so there are only as many as run at once.
        self._idle = collections.deque[Callable[[Feed], list[Array]]]()

    def run(self, feed: Feed) -> _Sample:
        """Run one sample; any number of threads may."""
        try:
            run = self._idle.pop()
        except IndexError:
            run = self._running.repeated(self._outputs)
        return _Sample(dict(zip(self._outputs, run(feed), strict=True)), run)

    def observe(self, sample: _Sample) -> _Observed:
        """Observe one sample and let go of it; return its size and the sums of its channels."""
        whole = {name: sample.arrays[name] for name in self._whole}
        size, sums = _observe(whole, self._specs, self.observer)
        for name, positions in self._pooled.items():
            highest, mean = (sample.arrays[output] for output in pools_of(name))
            pools = Pools(highest, mean, positions)
            self.observer.add_pools(name, pools)
            size += pools.nbytes
            if self._specs[name].channel_axis is not None:
                sums[name] = pools.sums()
        self._idle.append(sample.source)
        return size, sums


def _observe(
    arrays: Mapping[str, FloatArray], specs: Mapping[str, ObserverSpec], observer: Observer
) -> _Observed:
    """Observe tensors of one sample; return their size and the sums of their channels."""
    size, sums = 0, dict[str, ChannelSums]()
    for name, array in arrays.items():
        spec = specs[name]
        observer.add(name, array)
        size += array.nbytes
        if spec.channel_axis is not None and array.ndim > 1:
            some = thinned(array)
            sums[name] = channel_sums(some, spec.channel_axis, squares=spec.variances)
    return size, sums


def _run_in_parts(
    model: ir.Model,
    specs: Mapping[str, ObserverSpec],
    observer: Observer,
    data: Iterable[Feed],
    optimize: Optimize,
    progress: Progress,
) -> int:
    """Run every sample through one part of a large model after another; return how many there were."""
    samples = 0
    with open_store() as store:
        run = PartwiseRun(model, list(specs), store, optimize=optimize, name=_NAME)
        for part in range(len(run)):
            run.begin(part)

            def take(item: tuple[int, Feed | None], part: int = part) -> _Observed:
                return _observe(run.run(part, *item), specs, observer)

            first = enumerate(data) if part == 0 else ((index, None) for index in range(samples))
            # In order, which some observers need; a large model's operators are large enough to
            # leave little to gain from two samples at once.
            for index, (_, sums) in enumerate(map(take, first)):
                for name, more in sums.items():
                    observer.add_channels(name, more)
                samples = max(samples, index + 1)
                progress((part * samples + index + 1) // len(run))
        run.end()
    return samples


def _run_all(runner: _Runner, data: Iterable[Feed], progress: Progress, *, ordered: bool) -> int:
    """Run every sample and observe it; return how many there were."""
    feeds = iter(data)
    first = next(feeds, None)
    if first is None:
        return 0
    begun = runner.observe(runner.run(first))
    threads = _thread_count(begun[0])
    rest: Iterator[_Observed]
    if ordered:
        # One after the other, while the next is run if there is room for two. To share one sample's
        # tensors out among threads was slower: they wait for each other between short steps.
        run = ordered_map(runner.run, feeds, 1) if threads > 1 else map(runner.run, feeds)
        rest = map(runner.observe, run)
    else:
        rest = ordered_map(lambda feed: runner.observe(runner.run(feed)), feeds, threads)
    samples = 0
    # Float sums are added up here, in the order of the samples: the result must not depend on
    # which thread was faster.
    for _, sums in itertools.chain([begun], rest):
        for name, part in sums.items():
            runner.observer.add_channels(name, part)
        progress(samples := samples + 1)
    return samples


def _thread_count(bytes_per_sample: int) -> int:
    fitting = _MEMORY_FOR_TENSORS // max(1, bytes_per_sample)
    return int(max(1, min(os.cpu_count() or 1, fitting)))
