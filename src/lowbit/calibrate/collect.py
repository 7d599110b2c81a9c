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

from lowbit.calibrate.observers import Measure, Need, OrderedMeasure, need_of, thinned
from lowbit.calibrate.pooled import Pools, add_pools, poolable, pools_of
from lowbit.calibrate.statistics import ChannelSums, Stats, channel_sums
from lowbit.config.methods import OutputMse
from lowbit.config.specs import FloatSpec, IntegerSpec
from lowbit.errors import CalibrationError
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, Optimize, Session, opened, with_outputs
from lowbit.numerics.formats import FloatArray
from lowbit.ops.traits import clip_bounds
from lowbit.parallel import ordered_map
from lowbit.planning.plan import Plan

Progress = Callable[[int], None]

# Threads are added only while their samples' tensors stay within this, in bytes.
_MEMORY_FOR_TENSORS = 256 << 20


def collect(
    model: ir.Model,
    plan: Plan,
    data: Iterable[Feed],
    *,
    everything: bool = False,
    means: bool = True,
    twins: Mapping[str, str] = MappingProxyType({}),
    threads_per_sample: int = 1,
    optimize: Optimize = "none",
    progress: Progress = lambda _: None,
) -> Stats:
    """Return the statistics that ``plan`` needs of the activations of ``model``.

    ``everything`` keeps histograms of all planned tensors and the variances of channels, so that
    saved statistics serve any method later. ``means`` keeps the channel means that bias correction reads, those
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
        optimize=optimize,
        name="the model for calibration",
    ) as running:
        ordered = any(need.ordered for need in needs.values())
        measure = OrderedMeasure(needs) if ordered else Measure(needs)
        reader = _Reader(running, needs, pooled, measure)
        samples = _run_all(reader, measure, data, progress, ordered=ordered)
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
        if tensor.is_calibrated and isinstance(tensor.spec, (IntegerSpec, FloatSpec)):
            want(tensor.observe, need_of(tensor.spec.method))
    if everything:
        for name in (*needs, *(t.name for t in plan.activations())):
            want(name, Need(histogram=True))
    for row in plan.biases if means else ():
        for name in (row.input, twins.get(row.input, row.input)):
            want(name, Need(channel_axis=row.channel_axis, variances=everything))
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


_Measured = tuple[int, dict[str, ChannelSums]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Sample:
    """What one run gave, in arrays that the next run of the same ``source`` overwrites."""

    arrays: Mapping[str, FloatArray]
    source: Callable[[Feed], list[Array]]


class _Reader:
    """Runs samples and measures them."""

    def __init__(
        self,
        running: Session,
        needs: Mapping[str, Need],
        pooled: Mapping[str, int],
        measure: Measure,
    ) -> None:
        self._running, self._needs, self._pooled, self._measure = running, needs, pooled, measure
        self._whole = [name for name in needs if name not in pooled]
        self._outputs = [*self._whole, *(out for name in pooled for out in pools_of(name))]
        # Each holds the tensors of a sample, so there are only as many as run at once.
        self._idle = collections.deque[Callable[[Feed], list[Array]]]()

    def read(self, feed: Feed) -> _Sample:
        """Run one sample; any number of threads may."""
        try:
            run = self._idle.pop()
        except IndexError:
            run = self._running.repeated(self._outputs)
        return _Sample(dict(zip(self._outputs, run(feed), strict=True)), run)

    def measure(self, sample: _Sample) -> _Measured:
        """Measure one sample and let go of it; return its size and the sums of its channels."""
        size, sums = 0, dict[str, ChannelSums]()
        for name in self._whole:
            array, need = sample.arrays[name], self._needs[name]
            self._measure.add(name, array)
            size += array.nbytes
            if need.channel_axis is not None and array.ndim > 1:
                some = thinned(array)
                sums[name] = channel_sums(some, need.channel_axis, squares=need.variances)
        for name, positions in self._pooled.items():
            highest, mean = (sample.arrays[output] for output in pools_of(name))
            pools = Pools(highest, mean, positions)
            self._measure.add_pools(name, pools)
            size += pools.nbytes
            if self._needs[name].channel_axis is not None:
                sums[name] = pools.sums()
        self._idle.append(sample.source)
        return size, sums


def _run_all(
    reader: _Reader, measure: Measure, data: Iterable[Feed], progress: Progress, *, ordered: bool
) -> int:
    """Run every sample and measure it; return how many there were."""
    feeds = iter(data)
    first = next(feeds, None)
    if first is None:
        return 0
    begun = reader.measure(reader.read(first))
    threads = _thread_count(begun[0])
    rest: Iterator[_Measured]
    if ordered:
        # One after the other, while the next is run if there is room for two. To share one sample's
        # tensors out among threads was slower: they wait for each other between short steps.
        read = ordered_map(reader.read, feeds, 1) if threads > 1 else map(reader.read, feeds)
        rest = map(reader.measure, read)
    else:
        rest = ordered_map(lambda feed: reader.measure(reader.read(feed)), feeds, threads)
    samples = 0
    # Float sums are added up here, in the order of the samples: the result must not depend on
    # which thread was faster.
    for _, sums in itertools.chain([begun], rest):
        for name, part in sums.items():
            measure.add_channels(name, part)
        progress(samples := samples + 1)
    return samples


def _thread_count(bytes_per_sample: int) -> int:
    fitting = _MEMORY_FOR_TENSORS // max(1, bytes_per_sample)
    return int(max(1, min(os.cpu_count() or 1, fitting)))
