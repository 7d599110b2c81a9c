"""The layer-by-layer loop.

The float and the quantized model run forward side by side. Each layer is solved from its inputs in
the one and its outputs in the other, and all that comes after it sees the solved one.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.memory import release_memory
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.graph.store import Store
from lowbit.parallel import cpu_count, ordered_map
from lowbit.refine.algorithm import Feeds, LoopSettings, Solve
from lowbit.refine.layers import LayerResult, RefinedLayer, replaced_constants, unrefined
from lowbit.refine.samples import (
    LayerSample,
    LayerTarget,
    SampleOnDisk,
    enough_positions,
    take_sample,
    take_target,
)
from lowbit.state import Quantized


class LayerTargets:
    """Gives each sample's target of each layer; steps are taken in order."""

    def __init__(
        self,
        model: ir.Model,
        layers: Sequence[RefinedLayer],
        store: Store,
        settings: LoopSettings,
        *,
        samples: int,
        device: str,
    ) -> None:
        """Plan the float run; ``samples`` is about how many there will be."""
        self._layers, self._seed, self._at_once = layers, settings.seed, settings.at_once
        self._positions = {
            layer.node: enough_positions(layer.geometry, settings.positions, samples)
            if settings.moments
            else settings.positions
            for layer in layers
        }
        self._inputs = _inputs(model, layers) if settings.float_inputs else {}
        self._kept: dict[tuple[int, int], LayerTarget] = {}
        wanted = [
            [name for name in (layer.output, self._inputs.get(layer.node)) if name]
            for layer in layers
        ]
        if self._at_once:
            wanted = [list(dict.fromkeys(name for names in wanted for name in names))]
        self._run = LayerwiseRun(model, wanted, store, device=device, name="the float model")

    def begin(self, step: int) -> None:
        """Make a step ready."""
        if step == 0 or not self._at_once:
            self._run.begin(step, {})

    def of(self, step: int, sample: int, feed: Feed | None) -> LayerTarget:
        """Return one sample's target."""
        if not self._at_once:
            return self._target(self._layers[step], sample, self._run.run(sample, feed))
        if step == 0:
            found = self._run.run(sample, feed)
            for index, layer in enumerate(self._layers):
                self._kept[index, sample] = self._target(layer, sample, found)
        return self._kept.pop((step, sample))

    def _target(self, layer: RefinedLayer, sample: int, found: Mapping[str, Array]) -> LayerTarget:
        # Drawn by name, so that a run that continues another draws the same.
        random = np.random.default_rng((self._seed, sample, *layer.node.encode()))
        x = self._inputs.get(layer.node)
        return take_target(
            layer.geometry,
            found[layer.output],
            None if x is None else found[x],
            self._positions[layer.node],
            random,
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
    """Is told of every layer, and may change what becomes of it."""

    def solved(self, index: int, layer: RefinedLayer, result: LayerResult) -> LayerResult:
        """Return the result to go on with."""


@dataclasses.dataclass(slots=True)
class LayerLoop:
    """One loop over all layers of a quantized model, for all samples of the data.

    ``done`` are the results of the first layers, known from before. ``disk`` keeps samples in files.
    ``independent``: each layer is solved as if no other were, several at a time.
    """

    state: Quantized
    layers: Sequence[RefinedLayer]
    feeds: Feeds
    targets: LayerTargets
    quantized: LayerwiseRun
    done: Sequence[LayerResult] = ()
    disk: Store | None = None
    independent: bool = False
    _count: int = 0

    def run(self, solve: Solve, listener: Listener) -> Iterator[LayerResult]:
        """Solve every layer that is left, in turn, and yield its result."""
        constants: dict[str, Array] = {}
        for layer, result in zip(self.layers, self.done, strict=False):
            constants |= replaced_constants(self.state, layer, result)
        rest = list(enumerate(self.layers))[len(self.done) :]
        if self.independent:
            yield from self._run_independently(rest, solve, listener)
            return
        for step, (index, layer) in enumerate(rest):
            samples = self._take_samples(step, layer, constants)
            result = listener.solved(index, layer, self._solved(solve, layer, samples))
            del samples  # before the next are taken, which can then use this memory
            release_memory()
            constants |= replaced_constants(self.state, layer, result)
            yield result

    def _run_independently(
        self, rest: Sequence[tuple[int, RefinedLayer]], solve: Solve, listener: Listener
    ) -> Iterator[LayerResult]:
        threads = cpu_count()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            pending: list[tuple[int, RefinedLayer, concurrent.futures.Future[LayerResult]]] = []

            def first() -> LayerResult:
                index, layer, future = pending.pop(0)
                return listener.solved(index, layer, future.result())

            for step, (index, layer) in enumerate(rest):
                samples = self._take_samples(step, layer, {})
                pending.append((index, layer, pool.submit(self._solved, solve, layer, samples)))
                if len(pending) > threads:
                    yield first()
            while pending:
                yield first()

    def _take_samples(
        self, step: int, layer: RefinedLayer, constants: Mapping[str, Array]
    ) -> list[LayerSample]:
        self.quantized.begin(step, constants)
        self.targets.begin(step)

        def take(item: tuple[int, Feed | None]) -> LayerSample:
            index, feed = item
            target = self.targets.of(step, index, feed)
            x = self.quantized.run(index, feed)[layer.input.name]
            sample = take_sample(layer.geometry, layer.input.floats(x), target)
            if self.disk is None:
                return sample
            return SampleOnDisk(self.disk, layer.node, index, sample)

        found = list(ordered_map(take, self._indexed_feeds(step), cpu_count()))
        # A sample of batch 0, or an empty cache, shows nothing of a layer.
        return [sample for sample in found if sample.count]

    def _solved(
        self, solve: Solve, layer: RefinedLayer, samples: Sequence[LayerSample]
    ) -> LayerResult:
        if not samples:
            return unrefined(self.state, layer, 0.0)
        result = solve(layer, samples)
        for sample in samples:
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


def batched(feeds: Feeds, size: int) -> Iterator[Feed]:
    """Yield feeds of ``size`` samples each, one after another along the first axis."""
    group: list[Feed] = []
    for feed in feeds():
        group.append(feed)
        if len(group) == size:
            yield _joined(group)
            group = []
    if group:
        yield _joined(group)


def _joined(group: Sequence[Feed]) -> Feed:
    return {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}
