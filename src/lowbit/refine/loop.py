"""The layer-by-layer loop.

The float and the quantized model run forward side by side. Each layer is solved from its inputs in
the one and its outputs in the other, and all that comes after it sees the solved one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.memory import GrownMemory, release_memory
from lowbit.graph.session import Array, Feed
from lowbit.graph.sharing import ONE_BY_ONE, Sharing
from lowbit.graph.store import Store
from lowbit.numerics.blas import one_blas_thread
from lowbit.parallel import Pool, cpu_count, ordered_map, worker_count
from lowbit.refine.algorithm import Collector, Feeds, Solve
from lowbit.refine.layers import LayerResult, RefinedConstants, RefinedLayer, unrefined
from lowbit.refine.remote import LayerSolver, LayerWork
from lowbit.refine.samples import (
    LayerColumns,
    LayerSample,
    SampleInMemory,
    SampleOnDisk,
    grouped,
    take_columns,
    take_sample,
)
from lowbit.refine.targets import LayerTargets
from lowbit.state import Quantized

_S = TypeVar("_S")
_T = TypeVar("_T")

Seen: TypeAlias = Sequence[LayerSample] | Collector
"""The input of a layer's solver: its samples, or the collector that summed them."""

# Samples that are taken in together.
_TOGETHER = 4


class Listener(Protocol):
    """A callback for every layer, which may change its result."""

    def solved(self, index: int, layer: RefinedLayer, result: LayerResult) -> LayerResult:
        """Return the result to go on with."""


@dataclasses.dataclass(slots=True)
class LayerLoop:
    """One loop over all layers of a quantized model, for all samples of the data.

    ``done`` are the results of the first layers, known from before. ``disk`` keeps the samples of a layer in
    files, those for which there are not ``room`` bytes in memory.
    ``independent``: each layer is solved as if no other were, several at a time; by ``remote`` where
    an engine is chosen. ``sharing`` says whether samples are large, ``steps`` how many take a step at a time. ``collect`` gives what takes in the
    samples of a layer, if the solver wants that instead of samples.
    """

    state: Quantized
    layers: Sequence[RefinedLayer]
    feeds: Feeds
    targets: LayerTargets
    quantized: LayerwiseRun
    done: Sequence[LayerResult] = ()
    disk: Store | None = None
    room: int = 0
    independent: bool = False
    sharing: Sharing = ONE_BY_ONE
    steps: Sharing = ONE_BY_ONE
    collect: Callable[[RefinedLayer], Collector] | None = None
    remote: LayerSolver | None = None
    _count: int = 0
    _pool: Pool | None = None

    def run(self, solve: Solve, listener: Listener) -> Iterator[LayerResult]:
        """Solve every layer that is left, in turn, and yield its result."""
        constants = RefinedConstants(self.state)
        for layer, result in zip(self.layers, self.done, strict=False):
            constants.add(layer, result)
        rest = list(enumerate(self.layers))[len(self.done) :]
        workers = worker_count() if self.independent and self.disk is None else None
        if workers is not None and self.remote is not None:
            yield from self._run_remotely(rest, self.remote, listener, 2 * workers)
            return
        if self.independent:
            yield from self._run_independently(rest, solve, listener)
            return
        memory = GrownMemory()
        with Pool(self.steps.samples) as self._pool:
            for step, (index, layer) in enumerate(rest):
                with self._one_blas_thread():
                    solved = self._solved(solve, layer, self._seen(step, layer, constants))
                result = listener.solved(index, layer, solved)
                memory.release()
                constants.add(layer, result)
                yield result

    def _run_remotely(
        self,
        rest: Sequence[tuple[int, RefinedLayer]],
        remote: LayerSolver,
        listener: Listener,
        at_once: int,
    ) -> Iterator[LayerResult]:
        """Solve layers on workers, as many at once as there is memory for their samples."""
        for start in range(0, len(rest), at_once):
            wave = rest[start : start + at_once]
            with self._one_blas_thread():
                seen = [self._seen(start + step, layer, {}) for step, (_, layer) in enumerate(wave)]
            works = [
                LayerWork.of(self.state, layer, shown)
                for (_, layer), shown in zip(wave, seen, strict=True)
                if shown
            ]
            results = remote.results(works)
            for (index, layer), shown in zip(wave, seen, strict=True):
                found = next(results) if shown else unrefined(self.state, layer, 0.0)
                yield listener.solved(index, layer, found)
            release_memory()

    def _run_independently(
        self, rest: Sequence[tuple[int, RefinedLayer]], solve: Solve, listener: Listener
    ) -> Iterator[LayerResult]:
        def seen() -> Iterator[tuple[int, RefinedLayer, Seen]]:
            for step, (index, layer) in enumerate(rest):
                yield index, layer, self._seen(step, layer, {})

        def solved(item: tuple[int, RefinedLayer, Seen]) -> tuple[int, RefinedLayer, LayerResult]:
            index, layer, samples = item
            return index, layer, self._solved(solve, layer, samples)

        with self._one_blas_thread():
            for found in ordered_map(solved, seen(), cpu_count()):
                yield listener.solved(*found)

    def _one_blas_thread(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which matrix products have one thread, where sums are collected.

        Samples are shared out among threads, in whose way others would be; and sums that more threads
        make may round otherwise.
        """
        return contextlib.nullcontext() if self.collect is None else one_blas_thread()

    def _seen(self, step: int, layer: RefinedLayer, constants: Mapping[str, Array]) -> Seen:
        """Return what is seen of a layer: its samples, or what took them in."""
        if self.collect is None:
            return self._take_samples(step, layer, constants)
        return self._collected(self.collect(layer), step, layer, constants)

    def _take_samples(
        self, step: int, layer: RefinedLayer, constants: Mapping[str, Array]
    ) -> list[LayerSample]:
        self._begin(step, constants)

        def take(item: tuple[int, Feed | None]) -> SampleInMemory:
            return self._sample(step, layer, *item)

        found: list[LayerSample] = []
        taken = 0
        for index, sample in enumerate(self._mapped(take, self._indexed_feeds(step))):
            taken += sample.nbytes
            if self.disk is None or taken <= self.room:
                found.append(sample)
            else:
                found.append(SampleOnDisk(self.disk, layer.node, index, sample))
        self._end()
        # A sample of batch 0, or an empty cache, shows nothing of a layer.
        return [sample for sample in found if sample.count]

    def _mapped(self, take: Callable[[_S], _T], items: Iterable[_S]) -> Iterator[_T]:
        """Yield what is taken of samples, as many at a time as are to be run."""
        return ordered_map(take, items, self.steps.samples, self._pool)

    def _begin(self, step: int, constants: Mapping[str, Array]) -> None:
        self.quantized.begin(step, constants)
        self.targets.begin(step)

    def _end(self) -> None:
        """Close both models, which would be in memory while the layer is solved."""
        self.quantized.end()
        self.targets.end()

    def _sample(
        self, step: int, layer: RefinedLayer, index: int, feed: Feed | None
    ) -> SampleInMemory:
        target = self.targets.of(step, index, feed)
        x = self.quantized.run(index, feed)[layer.input.name]
        return take_sample(layer.geometry, layer.input.floats(x), target)

    def _columns(
        self, step: int, layer: RefinedLayer, index: int, feed: Feed | None
    ) -> LayerColumns:
        target = self.targets.of(step, index, feed)
        x = self.quantized.run(index, feed)[layer.input.name]
        return take_columns(layer.geometry, x, target, layer.input.floats)

    def _collected(
        self,
        collector: Collector,
        step: int,
        layer: RefinedLayer,
        constants: Mapping[str, Array],
    ) -> Collector:
        """Collect the samples of a layer, a few at a time."""
        self._begin(step, constants)

        def take(items: Sequence[tuple[int, Feed | None]]) -> list[tuple[int, LayerColumns]]:
            return [(index, self._columns(step, layer, index, feed)) for index, feed in items]

        some = grouped(self._indexed_feeds(step), _TOGETHER)
        for samples in self._mapped(take, some):
            # A sample of batch 0, or an empty cache, shows nothing of a layer.
            collector.add([(index, columns) for index, columns in samples if columns.count])
        self._end()  # before the rest is summed up, which takes memory
        collector.finish()
        return collector

    def _solved(self, solve: Solve, layer: RefinedLayer, seen: Seen) -> LayerResult:
        if not seen:
            return unrefined(self.state, layer, 0.0)
        result = solve(layer, seen)
        if isinstance(seen, list):
            for sample in seen:
                if isinstance(sample, SampleOnDisk):
                    sample.drop()
        return result

    def _indexed_feeds(self, step: int) -> Iterator[tuple[int, Feed | None]]:
        if step > 0:
            yield from ((index, None) for index in range(self._count))
            return
        self._count = 0
        for index, feed in enumerate(self.feeds()):
            self._count = index + 1
            yield index, feed
