"""Run the data through the model once and keep statistics, never the tensors themselves.

Samples run in parallel, one a thread, each thread with a single-threaded session: that scales
better than threads inside an operator, and the statistics of a sample are taken by the thread
that computed it. Peak memory is that of ``threads`` samples, however many there are.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.calibrate.masked import Kept, kept_tokens, mask_input
from lowbit.calibrate.observers import Observer, ObserverSpec, OrderedObserver, observer_of
from lowbit.calibrate.pooled import add_positions, map_row_steps
from lowbit.calibrate.sample_runner import SampleRunner, observe_arrays
from lowbit.calibrate.sharded import Observed, collect_shards
from lowbit.calibrate.statistics import Stats
from lowbit.config.methods import OutputMse
from lowbit.data.shards import Selection
from lowbit.errors import CalibrationError
from lowbit.graph.parts import PartwiseRun, is_large
from lowbit.graph.pooling import (
    add_pools,
    bytes_of_maps,
    large_maps,
    poolable,
    schedule_early,
    whole_blocks,
)
from lowbit.graph.session import Feed, Optimize, model_inputs, session, with_outputs
from lowbit.graph.sharing import sharing_of
from lowbit.graph.store import open_store
from lowbit.ops.traits import non_negative
from lowbit.parallel import cpu_count, ordered_map, run_ahead, worker_count
from lowbit.planning.plan import Plan
from lowbit.store import Store

Progress = Callable[[int], None]

_NAME = "the model for calibration"

# Threads are added only while their samples' tensors stay within this, in bytes.
_MEMORY_FOR_TENSORS = 256 << 20
# Feature maps that may wait for the end of a run of a large sample, in bytes.
_MEMORY_FOR_WAITING = 32 << 20
# What a sample gives that may be looked at while the next one runs, in bytes.
_MEMORY_FOR_NEXT = 16 << 20


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
    padding: bool = True,
    store: Store | None = None,
    progress: Progress = lambda _: None,
) -> Stats:
    """Return the statistics that ``plan`` asks for of the activations of ``model``.

    ``everything`` keeps histograms of all planned tensors and the variances of channels, so that
    saved statistics serve any method later. ``means`` keeps the channel means that bias correction
    reads, those of ``float_names`` (float counterparts, by tensor) too. ``progress`` is told after each
    sample how many are done. The number of threads that share one sample changes float sums in their
    last bit, and so ranges; leave it at one for speed. ``padding``: whether tensors are observed at
    masked tokens too.

    Where an engine was chosen (``lowbit.parallel``) or there is a ``store`` for what is finished, the
    samples are shared out in shards; the statistics have the same bits. What depends on the order of
    samples is collected here.
    """
    specs = _observer_specs(plan, float_names, everything=everything, means=means or everything)
    if not specs:
        return Stats({}, 0)
    # Every range is made to hold zero, so the least value of what is bounded by it decides nothing and is
    # not looked for: in a network of ReLUs that is a third of the time that ranges take.
    bounded = non_negative(model.graph)
    specs = {
        n: dataclasses.replace(spec, floor=0.0 if n in bounded else None)
        for n, spec in specs.items()
    }
    ordered = any(spec.ordered for spec in specs.values())
    mask = "" if padding else mask_input(model_inputs(model))
    if is_large(model):
        return _collected_in_parts(model, specs, data, optimize, progress, mask, ordered=ordered)
    first, feeds = _peeked(data)
    sharing = sharing_of(first, model)
    threads = max(threads_per_sample, sharing.threads)
    # The graph does not know which positions are masked.
    pooled = {} if mask else _pooled(model.graph, specs)
    if bytes_of_maps(model.graph, _waiting(model.graph, specs, pooled)) > _MEMORY_FOR_WAITING:
        optimize = sharing.lean(optimize)
    probe = _probe(model, specs, pooled, in_blocks=optimize == "all")
    observed = Observed(specs, pooled, threads, optimize, mask)
    if isinstance(data, Selection) and not ordered and (store or worker_count() is not None):
        return collect_shards(probe, observed, data, store, progress)
    return _collected(probe, observed, first, feeds, progress, ordered=ordered)


def _peeked(data: Iterable[Feed]) -> tuple[Feed | None, Iterator[Feed]]:
    """Return the first sample, if there is one, and the others."""
    feeds = iter(data)
    return next(feeds, None), feeds


def _pooled(graph: ir.Graph, specs: Mapping[str, ObserverSpec]) -> dict[str, int]:
    """Return the maps that the graph measures itself, with how many positions their channels have."""
    positions, large = poolable(graph), large_maps(graph)
    subsampled = map_row_steps(graph).keys()
    return {
        n: positions[n]
        for n, s in specs.items()
        if n in positions
        and (s.floor is not None or n in large)
        and (s.pools or (s.pools_but_rows and n in subsampled))
    }


def _waiting(
    graph: ir.Graph, specs: Mapping[str, ObserverSpec], pooled: Mapping[str, int]
) -> list[str]:
    """Return the tensors that are looked at when all others are computed, if channels lie in blocks."""
    blocks = whole_blocks(graph)
    return [n for n, s in specs.items() if n not in pooled or s.floor is None or n not in blocks]


def _probe(
    model: ir.Model,
    specs: Mapping[str, ObserverSpec],
    pooled: Mapping[str, int],
    *,
    in_blocks: bool,
) -> ir.Model:
    """Return a model that gives what is observed."""
    probe = with_outputs(model, [n for n in specs if n not in pooled])
    given = len(probe.graph.outputs)
    add_pools(probe.graph, pooled, [n for n in pooled if specs[n].floor is None])
    counted = [n for n in pooled if specs[n].histogram]
    maps = [n for n in counted if specs[n].is_map]
    add_positions(probe.graph, counted, maps, in_blocks=in_blocks)
    if in_blocks:
        schedule_early(probe.graph, given)
    return probe


def _collected(
    probe: ir.Model,
    observed: Observed,
    first: Feed | None,
    feeds: Iterator[Feed],
    progress: Progress,
    *,
    ordered: bool,
) -> Stats:
    """Collect here, in this process."""
    with session(
        probe, threads=observed.threads, optimize=observed.optimize, name=_NAME
    ) as running:
        observer = OrderedObserver(observed.specs) if ordered else Observer(observed.specs)
        runner = SampleRunner(running, observed.specs, observed.pooled, observer, observed.mask)
        at_once = sharing_of(first, probe).samples
        samples = _run_all(runner, first, feeds, progress, at_once=at_once, ordered=ordered)
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


def _collected_in_parts(
    model: ir.Model,
    specs: Mapping[str, ObserverSpec],
    data: Iterable[Feed],
    optimize: Optimize,
    progress: Progress,
    mask: str,
    *,
    ordered: bool,
) -> Stats:
    """Run every sample through one part of a large model after another."""
    observer = OrderedObserver(specs) if ordered else Observer(specs)
    samples = 0
    kept: dict[int, Kept | None] = {}
    with open_store() as store:
        run = PartwiseRun(model, list(specs), store, optimize=optimize, name=_NAME)
        for part in range(len(run)):
            run.begin(part)
            first = enumerate(data) if part == 0 else ((index, None) for index in range(samples))
            # In order, which some observers need; a large model's operators are large enough to
            # leave little to gain from two samples at once.
            for index, feed in first:
                if feed is not None:
                    kept[index] = kept_tokens(feed, mask)
                observe_arrays(run.run(part, index, feed), specs, observer, kept[index])
                samples = max(samples, index + 1)
                progress((part * samples + index + 1) // len(run))
        run.end()
    if samples == 0:
        raise CalibrationError("the data holds no samples; at least one is needed")
    return Stats(observer.result(), samples)


def _run_all(
    runner: SampleRunner,
    first: Feed | None,
    feeds: Iterator[Feed],
    progress: Progress,
    *,
    at_once: int,
    ordered: bool,
) -> int:
    """Run every sample and observe it; return how many there were."""
    if first is None:
        return 0
    sample = runner.run(first)
    held = sample.nbytes
    begun = runner.observe(sample)
    threads = min(_thread_count(begun), at_once)
    rest: Iterator[int]
    if ordered or threads == 1:
        # One after the other, while the next is run if there is room for what two give. To share one sample's
        # tensors out among threads was slower: they wait for each other between short steps.
        ahead = cpu_count() > 1 and held <= _MEMORY_FOR_NEXT
        rest = map(runner.observe, (run_ahead if ahead else map)(runner.run, feeds))
    else:
        rest = ordered_map(lambda feed: runner.observe(runner.run(feed)), feeds, threads)
    samples = 0
    for _ in itertools.chain([begun], rest):
        progress(samples := samples + 1)
    return samples


def _thread_count(bytes_per_sample: int) -> int:
    fitting = _MEMORY_FOR_TENSORS // max(1, bytes_per_sample)
    return int(max(1, min(cpu_count(), fitting)))
