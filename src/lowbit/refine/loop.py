"""The layer-by-layer loop.

The float and the quantized model run forward side by side. Each layer is solved from its inputs in
the one and its outputs in the other, and all that comes after it sees the solved one.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.memory import GrownMemory, release_memory
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.graph.sharing import ONE_BY_ONE, Sharing
from lowbit.graph.store import Store
from lowbit.numerics.blas import one_blas_thread
from lowbit.ops.geometry import Positions
from lowbit.parallel import Pool, cpu_count, ordered_map, worker_count
from lowbit.refine.algorithm import Collector, Feeds, LoopSettings, Solve
from lowbit.refine.gathering import Gathered, known_sizes, spread_positions, with_gathering
from lowbit.refine.layers import LayerResult, RefinedConstants, RefinedLayer, unrefined
from lowbit.refine.remote import LayerSolver, LayerWork
from lowbit.refine.samples import (
    LayerColumns,
    LayerSample,
    LayerTarget,
    SampleInMemory,
    SampleOnDisk,
    enough_positions,
    grouped,
    take_columns,
    take_sample,
    take_target,
)
from lowbit.state import Quantized

_S = TypeVar("_S")
_T = TypeVar("_T")

# Weights of layers that the float model is run through at once, in bytes.
_ROOM = 32 << 20
# And how many layers: onnxruntime's time to open a graph grows faster than the number of its nodes.
_LAYERS_AT_ONCE = 128
Seen: TypeAlias = Sequence[LayerSample] | Collector
"""The input of a layer's solver: its samples, or the collector that summed them."""

# Samples that are taken in together.
_TOGETHER = 4


class LayerTargets:
    """Gives the target of each sample and layer; steps are taken in order."""

    def __init__(
        self,
        model: ir.Model,
        layers: Sequence[RefinedLayer],
        store: Store,
        settings: LoopSettings,
        *,
        samples: int,
        device: str,
        sharing: Sharing,
    ) -> None:
        """Plan the float run; ``samples`` is about how many there will be."""
        self._layers, self._seed = layers, settings.seed
        self._positions = {
            layer.node: enough_positions(
                layer.geometry, settings.positions, samples, large=sharing.one_by_one
            )
            if settings.moments
            else settings.positions
            for layer in layers
        }
        self._inputs = _inputs(model, layers) if settings.float_inputs else {}
        self._gathered: dict[str, Gathered] = {}
        if settings.moments and not settings.float_inputs:
            model, self._gathered = with_gathering(model, layers)
        self._model = model
        self._shapes: dict[tuple[str, int], tuple[int, ...]] = {}
        self._kept: dict[tuple[int, int], LayerTarget] = {}
        self._store = store
        self._parts = [range(len(layers))] if settings.at_once else self._divided()
        self._starting = {part.start: number for number, part in enumerate(self._parts)}
        self._run = LayerwiseRun(
            model,
            [list(dict.fromkeys(n for i in part for n in self._wanted(i))) for part in self._parts],
            store,
            # What is gathered is all that is looked at: onnxruntime may compute it as it likes.
            optimize=sharing.lean("all") if self._gathered else "none",
            device=device,
            threads=sharing.threads,
            name="the float model",
        )

    def _divided(self) -> list[range]:
        """Return the layers in parts that are run at once, as far as their weights fit."""
        parts, start, size = [], 0, 0
        for index, layer in enumerate(self._layers):
            size += 4 * layer.geometry.channels * layer.geometry.depth
            following = self._layers[index + 1].node if index + 1 < len(self._layers) else ""
            full = size > _ROOM or index + 1 - start >= _LAYERS_AT_ONCE
            if layer.node not in self._gathered or following not in self._gathered or full:
                parts.append(range(start, index + 1))
                start, size = index + 1, 0
        return parts

    def _wanted(self, index: int) -> list[str]:
        """Return the values of the float model that a layer's target is made of."""
        layer = self._layers[index]
        gathered = self._gathered.get(layer.node)
        if gathered is not None:
            return [gathered.values]
        return [name for name in (layer.output, self._inputs.get(layer.node)) if name]

    def begin(self, step: int) -> None:
        """Make a step ready."""
        number = self._starting.get(step)
        if number is not None:
            self._run.begin(number, {})

    def end(self) -> None:
        """Close the step that has begun."""
        self._run.end()

    def of(self, step: int, sample: int, feed: Feed | None) -> LayerTarget:
        """Return one sample's target."""
        number = self._starting.get(step)
        if number is not None:
            found = self._run.run(sample, self._fed(sample, feed))
            for index in self._parts[number]:
                self._keep(index, sample, found)
        return self._taken(step, sample)

    def _keep(self, index: int, sample: int, found: Mapping[str, Array]) -> None:
        layer = self._layers[index]
        gathered = self._gathered.get(layer.node)
        if gathered is None:
            self._kept[index, sample] = self._target(layer, sample, found)
        else:
            self._store.put(sample, gathered.values, found[gathered.values])

    def _taken(self, step: int, sample: int) -> LayerTarget:
        layer = self._layers[step]
        gathered = self._gathered.get(layer.node)
        if gathered is None:
            return self._kept.pop((step, sample))
        values = self._store.get(sample, gathered.values)
        self._store.drop(sample, gathered.values)
        shape = self._shapes.pop((layer.node, sample))
        return gathered.target(self._at(layer, sample, shape), shape, values)

    def _fed(self, sample: int, feed: Feed | None) -> Feed | None:
        """Return a feed with the positions that the float model gathers."""
        if feed is None:
            return None
        known = known_sizes(self._model, feed)
        fed = dict(feed)
        for layer in self._layers:
            gathered = self._gathered.get(layer.node)
            if gathered is not None:
                self._shapes[layer.node, sample] = shape = gathered.shape(known)
                fed[gathered.at] = gathered.fed(self._at(layer, sample, shape), shape)
        return fed

    def _at(self, layer: RefinedLayer, sample: int, shape: Sequence[int]) -> Positions:
        count = layer.geometry.count(shape)
        return spread_positions(count, self._positions[layer.node], sample)

    def _random(self, layer: RefinedLayer, sample: int) -> np.random.Generator:
        # Drawn by name, so that a run that continues another draws the same.
        return np.random.default_rng((self._seed, sample, *layer.node.encode()))

    def _target(self, layer: RefinedLayer, sample: int, found: Mapping[str, Array]) -> LayerTarget:
        x = self._inputs.get(layer.node)
        return take_target(
            layer.geometry,
            found[layer.output],
            None if x is None else found[x],
            self._positions[layer.node],
            self._random(layer, sample),
        )


def _inputs(model: ir.Model, layers: Sequence[RefinedLayer]) -> dict[str, str]:
    """Return what each layer's node reads in the float model."""
    values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
    found = {}
    for layer in layers:
        producer = values[layer.output].producer()
        if producer is not None and producer.inputs[0] is not None:
            found[layer.node] = tensor_name(producer.inputs[0])
    return found


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
    an engine is chosen. ``sharing`` says how many samples are run at a time. ``collect`` gives what takes in the
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
        with Pool(self.sharing.samples) as self._pool:
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
        return ordered_map(take, items, self.sharing.samples, self._pool)

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
