"""The one place where models are run on samples to be compared."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.evaluate.kept_arrays import ArrayKeeper, KeptArrays
from lowbit.evaluate.kept_outputs import Keep, KeptOutputs
from lowbit.evaluate.runs_on_workers import CHUNK, WorkerRun, run_on_workers
from lowbit.graph.naming import tensor_name
from lowbit.graph.narrow_types import has_float8
from lowbit.graph.openvino import OpenVinoSession, Runtime, openvino_session
from lowbit.graph.parts import LARGE_NODES, is_large, run_in_parts
from lowbit.graph.session import Array, Feed, Optimize, Session, session
from lowbit.graph.sharing import SIDE_BY_SIDE, Sharing, sharing_of
from lowbit.parallel import cpu_count, ordered_map, worker_count

Outputs = Mapping[str, Array]

# Values of one model that wait for another's, in bytes.
_MEMORY_FOR_VALUES = 32 << 20
# Samples that wait for the last of several models, with what all of them give, in bytes: most of them in a
# file, as to open a model again takes longer than to read them.
_ROOM_FOR_SAMPLES = 256 << 20
_MEMORY_FOR_SAMPLES = 32 << 20
# Samples that a large model is run on while each of its parts is open: more where all it gives is
# known to be small.
_SAMPLES_AT_ONCE = 16
_SMALL_SAMPLES_AT_ONCE = 64
# Bytes of a number at most.
_WIDEST = 8

_Item = tuple[int, Feed]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A model to run, and what to keep of each sample.

    Attributes:
        model: The model.
        names: The tensors wanted, outputs or not.
        name: What errors call the model.
        optimize: Quantized models run without fused int8 kernels, which saturate on some processors.
        runtime: What runs it; only onnxruntime runs large models, and exactly.
        samples: The numbers of the samples to run it on; all if ``None``.
        keep: Returns what is kept of a tensor.
    """

    model: ir.Model
    names: Sequence[str]
    name: str
    optimize: Optimize = "none"
    runtime: Runtime = "onnxruntime"
    samples: frozenset[int] | None = None
    keep: Keep = lambda _, array: array

    @classmethod
    def float_model(cls, model: ir.Model, names: Sequence[str] | None = None) -> Run:
        """Return the run of a float model, of its outputs if nothing else is named."""
        names = output_names(model) if names is None else names
        return cls(model=model, names=names, name="the float model", optimize="all")

    @classmethod
    def quantized_model(cls, model: ir.Model, names: Sequence[str] | None = None) -> Run:
        """Return the exact run of a quantized model."""
        names = output_names(model) if names is None else names
        return cls(model=model, names=names, name="the quantized model")

    def quick(self) -> Run:
        """Return the same run where all that is faster and does not fuse Q/DQ may be done to it.

        A graph of many nodes takes longer to be optimized than to be run on tens of samples.
        """
        as_written = has_float8(self.model) or len(self.model.graph) > LARGE_NODES
        return self if as_written else dataclasses.replace(self, optimize="exact")

    @property
    def is_large(self) -> bool:
        """Whether the model is run in parts."""
        return self.runtime == "onnxruntime" and is_large(self.model)

    def in_parts(self, items: Sequence[_Item]) -> list[Outputs | None]:
        """Return what a large model gives for some samples."""
        mine = [item for item in items if self.samples is None or item[0] in self.samples]
        found = run_in_parts(
            self.model,
            self.names,
            (feed for _, feed in mine),
            lambda _, name, array: np.array(self.keep(name, array)),
            optimize=self.optimize,
            name=self.name,
        )
        by_index = {index: outputs for (index, _), outputs in zip(mine, found, strict=True)}
        return [by_index.get(index) for index, _ in items]

    def takes(self, index: int, name: str) -> bool:
        """Whether it gives a tensor of a sample."""
        return name in self.names and (self.samples is None or index in self.samples)

    def for_workers(self) -> WorkerRun:
        """Return it for other processes."""
        return WorkerRun(self.model, self.kept.names, self.name, self.optimize, self.kept)

    def opened(
        self, sharing: Sharing = SIDE_BY_SIDE
    ) -> contextlib.AbstractContextManager[Session | OpenVinoSession]:
        """Return a context that yields a session for samples that share processors so."""
        threads, name = sharing.threads, self.name
        if self.runtime == "openvino":
            return openvino_session(self.model, self.names, threads=threads, name=name)
        return session(self.model, self.names, threads=threads, optimize=self.optimize, name=name)

    def on(self, running: Session | OpenVinoSession, index: int, feed: Feed) -> Outputs | None:
        """Return what the model gives for one sample, or ``None`` if it is not run on it."""
        return self.kept(running, index, feed)

    @property
    def kept(self) -> KeptOutputs:
        """The values that are kept of a session's outputs."""
        return KeptOutputs(tuple(self.names), self.samples, self.keep)


def output_names(model: ir.Model) -> list[str]:
    """Return the names of a model's outputs."""
    return [tensor_name(value) for value in model.graph.outputs]


def run_model(run: Run, feeds: Iterable[Feed]) -> Iterator[Outputs]:
    """Yield what one model gives for each sample."""
    for _, (outputs,) in run_models([run], feeds):
        if outputs is not None:
            yield outputs


def run_models(
    runs: Sequence[Run], feeds: Iterable[Feed], looks: Collection[int] = ()
) -> Generator[tuple[Feed, tuple[Outputs | None, ...]], None, None]:
    """Yield each sample with what every model gives for it, all models open at once.

    Large models are run in turn, and in parts; in turn as well where samples are large. Workers of an
    engine run what is more than a few samples, if there are more of them than processors here: otherwise
    threads are faster. ``looks``: after how many samples the caller may want no more.
    """
    if any(run.is_large for run in runs):
        yield from run_models_in_turn(runs, feeds)
        return
    first, feeds = _peeked(feeds)
    items = enumerate(feeds)
    has_workers = (worker_count() or 0) > cpu_count()
    if has_workers and all(run.runtime == "onnxruntime" for run in runs):
        few = list(itertools.islice(items, CHUNK + 1))
        items = itertools.chain(few, items)  # type: ignore[assignment]
        if len(few) > CHUNK:
            yield from run_on_workers([run.for_workers() for run in runs], items)
            return
    sharing = sharing_of(first, *(run.model for run in runs))
    if sharing.one_by_one and len(runs) > 1:
        yield from run_models_in_turn(runs, (feed for _, feed in items), looks)
        return
    with contextlib.ExitStack() as stack:
        sessions = list(ordered_map(lambda run: stack.enter_context(run.opened(sharing)), runs))

        def work(item: tuple[int, Feed]) -> tuple[Feed, tuple[Outputs | None, ...]]:
            index, feed = item
            pairs = zip(runs, sessions, strict=True)
            return feed, tuple(run.on(running, index, feed) for run, running in pairs)

        yield from ordered_map(work, items, sharing.samples)


def _peeked(feeds: Iterable[Feed]) -> tuple[Feed | None, Iterable[Feed]]:
    """Return the first sample, if there is one, and all samples."""
    rest = iter(feeds)
    first = next(rest, None)
    return first, rest if first is None else itertools.chain([first], rest)


def run_models_in_turn(
    runs: Sequence[Run], feeds: Iterable[Feed], looks: Collection[int] = ()
) -> Iterator[tuple[Feed, tuple[Outputs | None, ...]]]:
    """Do the same with one model open at a time, for values of many tensors.

    Each session holds the tensors of several samples. The first model runs on as many samples as
    there is room for its values, and no further than to the next of ``looks``; the others follow on the same.
    """
    rest = enumerate(feeds)
    while (yield from _next_in_turn(runs, rest, looks)):
        pass


def _next_in_turn(
    runs: Sequence[Run], items: Iterator[_Item], looks: Collection[int]
) -> Generator[tuple[Feed, tuple[Outputs | None, ...]], None, bool]:
    """Yield as many samples as there is room for, and let go of them; return whether there were any."""
    # What opens a large model anew is not to be paid for every few samples.
    large = any(run.is_large for run in runs)
    keeper = ArrayKeeper(_MEMORY_FOR_SAMPLES)
    found = _some_values(runs[0], items) if large else _first_values(runs, items, looks, keeper)
    if not found:
        return False
    some = [item for item, _ in found]
    columns = [[outputs for _, outputs in found], *(_values(run, some, keeper) for run in runs[1:])]
    for (_, feed), *outputs in zip(some, *columns, strict=True):
        yield feed, tuple(outputs)
    return True


def run_together(
    groups: Sequence[Sequence[Run]], feeds: Iterable[Feed]
) -> Iterator[tuple[Feed, list[tuple[Outputs | None, ...]]]]:
    """Yield each sample with what the runs of every group give; a large model of several is run once.

    A large model is opened part by part each time: that takes longer than to run a few samples.
    """
    runs = [run for group in groups for run in group]
    items = enumerate(feeds)
    at_once = min((_samples_at_once(run) for run in runs), default=_SAMPLES_AT_ONCE)
    while some := list(itertools.islice(items, at_once)):
        columns: dict[int, list[Outputs | None]] = {}
        for same in _of_one_model(runs):
            values = (
                [_values(run, some) for run in same] if len(same) == 1 else _at_once(same, some)
            )
            columns |= {id(run): found for run, found in zip(same, values, strict=True)}
        for number, (_, feed) in enumerate(some):
            yield feed, [tuple(columns[id(run)][number] for run in group) for group in groups]


def _of_one_model(runs: Sequence[Run]) -> list[list[Run]]:
    """Return runs of one large model, with the same optimizations, together."""
    found: dict[tuple[int, Optimize, int], list[Run]] = {}
    for number, run in enumerate(runs):
        key = (id(run.model), run.optimize, -1 if run.is_large else number)
        found.setdefault(key, []).append(run)
    return list(found.values())


def _at_once(runs: Sequence[Run], items: Sequence[_Item]) -> list[list[Outputs | None]]:
    """Return what each of several runs of one large model gives."""

    def keep(number: int, name: str, array: Array) -> list[Array | None]:
        index = items[number][0]
        return [np.array(run.keep(name, array)) if run.takes(index, name) else None for run in runs]

    found = run_in_parts(
        runs[0].model,
        list(dict.fromkeys(name for run in runs for name in run.names)),
        (feed for _, feed in items),
        keep,
        optimize=runs[0].optimize,
        name=runs[0].name,
    )
    return [
        [
            {n: kept for n, rows in values.items() if (kept := rows[number]) is not None}
            if run.samples is None or index in run.samples
            else None
            for (index, _), values in zip(items, found, strict=True)
        ]
        for number, run in enumerate(runs)
    ]


def _values(
    run: Run, items: Sequence[_Item], keeper: ArrayKeeper | None = None
) -> list[Outputs | None]:
    if run.is_large:
        return run.in_parts(items)
    sharing = sharing_of(items[0][1] if items else None, run.model)
    with run.opened(sharing) as running:

        def work(item: _Item) -> Outputs | None:
            if keeper is None:
                return run.on(running, *item)
            return run.kept.into(keeper, running, *item)

        return list(ordered_map(work, items, sharing.samples))


def _some_values(run: Run, items: Iterator[_Item]) -> list[tuple[_Item, Outputs | None]]:
    """Run a model on the next samples, a fixed number of them."""
    some = list(itertools.islice(items, _samples_at_once(run)))
    return list(zip(some, _values(run, some), strict=True)) if some else []


def _samples_at_once(run: Run) -> int:
    """Return on how many samples a model is run at once, from the sizes that its graph says."""
    values = ir.convenience.create_value_mapping(run.model.graph, include_subgraphs=False)
    shapes = [values[n].shape for n in run.names] + [v.shape for v in run.model.graph.inputs]
    room = _MEMORY_FOR_VALUES // _SMALL_SAMPLES_AT_ONCE
    if any(shape is None or not shape.is_static() for shape in shapes):
        return _SAMPLES_AT_ONCE
    size = sum(_WIDEST * math.prod(shape.numpy()) for shape in shapes if shape is not None)
    return _SMALL_SAMPLES_AT_ONCE if size <= room else _SAMPLES_AT_ONCE


def _first_values(
    runs: Sequence[Run], items: Iterator[_Item], looks: Collection[int], keeper: ArrayKeeper
) -> list[tuple[_Item, Outputs | None]]:
    """Run the first model on as many samples as there is room for with all of them, none if none are left."""
    run = runs[0]
    first = next(items, None)
    if first is None:
        return []
    room = _ROOM_FOR_SAMPLES
    found: list[tuple[_Item, Outputs | None]] = []

    def more() -> Iterator[_Item]:
        yield first
        index = first[0]
        while room > 0 and index + 1 not in looks and (item := next(items, None)) is not None:
            yield item
            index = item[0]

    def work(item: _Item) -> tuple[_Item, KeptArrays | None]:
        return item, run.kept.into(keeper, running, *item)

    sharing = sharing_of(first[1], *(each.model for each in runs))
    with run.opened(sharing) as running:
        for item, outputs in ordered_map(work, more(), sharing.samples):
            room -= sum(np.asarray(value).nbytes for value in item[1].values())
            room -= 0 if outputs is None else len(runs) * outputs.nbytes
            index, feed = item
            found.append(((index, keeper.kept(feed)), outputs))
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class ReferenceSample:
    """One sample: what is fed, and what the float model gives for it."""

    feed: Feed
    outputs: Outputs


@dataclasses.dataclass(frozen=True, slots=True)
class ComparedSample:
    """One sample: what is fed, and what the float and the quantized model give for it."""

    feed: Feed
    outputs: Outputs
    quantized: Outputs


def reference_samples(
    run: Run, feeds: Iterable[Feed], room: int | None = None
) -> Iterator[ReferenceSample]:
    """Run the float model; yield as many samples as their outputs fit into ``room`` bytes."""
    is_first = True
    for feed, (outputs,) in run_models([run], feeds):
        if outputs is None:
            continue
        if room is not None:
            room -= sum(array.nbytes for array in outputs.values())
            if room < 0 and not is_first:
                break
        is_first = False
        yield ReferenceSample(feed, outputs)


def compared(run: Run, samples: Sequence[ReferenceSample]) -> Iterator[tuple[Outputs, Outputs]]:
    """Yield the float model's outputs and those of another model, for each sample."""
    for want, (got,) in compared_with_each([run], samples):
        yield want, got


def compared_with_each(
    runs: Sequence[Run], samples: Sequence[ReferenceSample]
) -> Iterator[tuple[Outputs, list[Outputs]]]:
    """Yield the float model's outputs and those of several other models, for each sample."""
    others = run_models(runs, (sample.feed for sample in samples))
    for sample, (_, found) in zip(samples, others, strict=True):
        yield sample.outputs, [outputs for outputs in found if outputs is not None]
