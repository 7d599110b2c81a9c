"""The float model's side of the layer-by-layer loop: the target of each layer, for each sample."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from lowbit.graph.layerwise_run import LayerwiseRun
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.graph.sharing import Sharing
from lowbit.graph.store import Store
from lowbit.ops.geometry import Positions
from lowbit.refine.algorithm import LoopSettings
from lowbit.refine.gathering import Gathered, known_sizes, spread_positions, with_gathering
from lowbit.refine.layers import RefinedLayer
from lowbit.refine.read_positions import DrawnPositions
from lowbit.refine.samples import LayerTarget, enough_positions, take_target

# Weights of layers that the float model is run through at once, in bytes.
_ROOM = 32 << 20
# And how many layers: onnxruntime's time to open a graph grows faster than the number of its nodes.
_LAYERS_AT_ONCE = 128

Draw: TypeAlias = Callable[[Mapping[str, int]], DrawnPositions]
"""Draws positions, as many of each layer as are wanted."""


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
        draw: Draw | None = None,
    ) -> None:
        """Plan the float run; ``samples`` is about how many there will be.

        ``draw`` chooses the positions; those of layers that it leaves out are spread evenly.
        """
        self._layers, self._seed = layers, settings.seed
        self._positions = {
            layer.node: enough_positions(
                layer.geometry, settings.positions, samples, large=sharing.one_by_one
            )
            if settings.moments
            else settings.positions
            for layer in layers
        }
        self._drawn = {} if draw is None or not settings.moments else draw(self._positions)
        self._inputs = _inputs(model, layers) if settings.float_inputs else {}
        self._gathered: dict[str, Gathered] = {}
        if settings.moments and not settings.float_inputs:
            model, self._gathered = with_gathering(model, layers)
        self._model = model
        # A step of the quantized model holds a few maps of a sample, the float model all of them.
        self._turns = threading.BoundedSemaphore(sharing.samples)
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
            with self._turns:
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
        drawn = self._drawn.get((layer.node, sample))
        if drawn is not None:
            return drawn
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
