"""The noise of rounding around groups of channels, from weights and from what samples show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.transforms.channel_groups import Consumer, Group
from lowbit.transforms.channel_statistics import ChannelSizes
from lowbit.transforms.implementation import Levels
from lowbit.transforms.layers import WeightedLayer
from lowbit.transforms.noise_model import GroupNoise, Rounded, joined

# Weights whose squares, in double precision, are in memory at a time.
_AT_ONCE = 1 << 21
_SWEEPS = 3
_REFINED = 0.3
"""How much of the noise of weights is left after better rounding and with corrected biases."""

_COHERENT = 30.0
"""How much more an error of weights counts where the network averages over positions.

It is the same at every position; errors of activations differ and average out. On MobileNetV2 in
A8W8, factors of 30 to 300 gave KL divergences from float of 0.016 to 0.018, and 1 gave 0.027.
"""


def read_axes(groups: Sequence[Group]) -> dict[str, int]:
    """Return the tensors that the layers of groups read, each with the axis of its channels."""
    layers = [m for g in groups for m in (*g.producers, *(c.layer for c in g.consumers))]
    return {layer.source: -1 if layer.operator.is_matrix else 1 for layer in layers}


class NoiseOfGroups:
    """Gives the noise around each group as its layers stand; they may change in between.

    ``averages``: whether the model's outputs have no positions, so that all that has any is averaged over them.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        sizes: Mapping[str, ChannelSizes],
        levels: Levels,
        *,
        averages: bool = False,
    ) -> None:
        self._sizes, self._levels, self._averages = sizes, levels, averages
        self._scaled: dict[str, tuple[Group, int]] = {}
        self._totals: dict[int, DoubleArray] = {id(g): np.ones(g.channels) for g in groups}
        for group in groups:
            for consumer in group.consumers:
                self._scaled[consumer.layer.source] = (group, consumer.repeat)
        self._importance: dict[int, DoubleArray] = {}
        for _ in range(_SWEEPS):
            for group in reversed(groups):
                self._update(group, [self._effect(consumer) for consumer in group.consumers])

    def of(self, group: Group, total: DoubleArray) -> GroupNoise:
        """Return the noise around a group that has been scaled by ``total`` so far."""
        self._totals[id(group)] = total
        effects = [self._effect(consumer) for consumer in group.consumers]
        self._update(group, effects)
        if not {id(c.layer) for c in group.consumers}.isdisjoint(map(id, group.producers)):
            effects = [self._effect(consumer) for consumer in group.consumers]
        activation, weight = (
            0.0 if level <= 0 else 1 / level**2
            for level in (self._levels.activation, self._levels.weight)
        )
        read = (effect.consumer.layer.node.inputs[0] for effect in effects)
        is_averaged = self._averages and all(map(_has_positions, read))
        weight *= _REFINED * (_COHERENT if is_averaged else 1.0)
        columns = np.sum([effect.columns for effect in effects], axis=0)
        tensors: dict[str, DoubleArray] = {}
        for effect in effects:
            name = effect.consumer.layer.source
            tensors[name] = tensors.get(name, 0.0) + effect.columns
        activations = [
            Rounded(self._read(n)[0].reshape(group.channels, -1).max(axis=1), e * activation)
            for n, e in tensors.items()
        ]
        return GroupNoise(
            joined(activations),
            joined([self._produced(m, columns, weight) for m in group.producers]),
            joined([self._consumed(effect, weight) for effect in effects]),
        )

    def _read(self, name: str) -> tuple[DoubleArray, DoubleArray]:
        """Return the reach and the power of each channel of a tensor as it stands."""
        known = self._sizes[name]
        if name not in self._scaled:
            return known.reach, known.power
        group, repeat = self._scaled[name]
        factors = np.repeat(self._totals[id(group)], repeat)
        return known.reach * factors, known.power * np.square(factors)

    def _update(self, group: Group, effects: Sequence[_Effect]) -> None:
        """Keep how much noise in each channel matters, relative to the others, for the layers before it."""
        found = np.sum([effect.columns for effect in effects], axis=0)
        mean = found.mean()
        found = found / mean if mean > 0 else np.ones(group.channels)
        for layer in group.producers:
            self._importance[id(layer)] = found

    def _gains(self, layer: WeightedLayer, energy: _Energy) -> DoubleArray:
        """Return how much noise in each output of a layer matters, as groups x outputs."""
        shape = layer.shape[:2]
        known = self._importance.get(id(layer))
        gains = np.ones(shape) if known is None else known.reshape(shape)
        return gains / max(self._power(layer, gains, energy), 1e-30)

    def _power(self, layer: WeightedLayer, gains: DoubleArray, energy: _Energy) -> float:
        """Return the power of a layer's outputs, each counted by its gain."""
        _, power = self._read(layer.source)
        outputs = energy.of_outputs(power.reshape(layer.shape[0], -1, 1))
        return float((gains * outputs[:, :, 0]).sum())

    def _effect(self, consumer: Consumer) -> _Effect:
        """Return what noise in each channel does to a consumer's outputs."""
        energy = _Energy(consumer.layer.kernel)
        gains = self._gains(consumer.layer, energy)
        found = energy.of_inputs(gains[:, None, :])
        columns = np.asarray(found.reshape(-1, consumer.repeat).sum(axis=1))
        return _Effect(consumer, gains, columns)

    def _rows(self, layer: WeightedLayer) -> DoubleArray:
        """Return what the weights of each output are divided by: with a scale each, the largest."""
        if not self._levels.per_channel:
            return np.ones(layer.shape[:2])
        largest = np.abs(layer.kernel).max(axis=(2, 3), initial=0).astype(np.float64)
        return np.where(largest > 0, largest, 1.0)

    def _consumed(self, effect: _Effect, level: float) -> Rounded:
        consumer, gains = effect.consumer, effect.gains
        layer = consumer.layer
        if self._levels.per_channel and layer.shape[2] == 1:
            # A depthwise layer's own scale takes the factor.
            return _nothing(layer.inputs // consumer.repeat)
        rows, taps, kernel = self._rows(layer), layer.shape[3], layer.kernel
        by_input = np.max(
            [self._largest(kernel[:, r], rows[:, r]) for r in _blocks(kernel)], axis=0
        )
        largest = by_input.reshape(-1, consumer.repeat).max(axis=1)
        weight = (gains * np.square(rows)).sum(axis=1, keepdims=True) * taps
        power = self._read(layer.source)[1].reshape(len(weight), -1) * weight
        noise = power.reshape(-1, consumer.repeat).sum(axis=1) * level
        return Rounded(np.asarray(largest, np.float64), noise)

    def _largest(self, kernel: FloatArray, rows: DoubleArray) -> DoubleArray:
        """Return the largest weight on each input, relative to what outputs' weights are divided by."""
        relative = np.abs(kernel)
        if self._levels.per_channel:
            relative = relative / rows[:, :, None, None]
        return np.asarray(relative.max(axis=(1, 3), initial=0))

    def _produced(self, layer: WeightedLayer, columns: DoubleArray, level: float) -> Rounded:
        if self._levels.per_channel:  # each channel's own scale takes the factor
            return _nothing(layer.outputs)
        largest = np.abs(layer.kernel).max(axis=(2, 3), initial=0).reshape(-1)
        groups, outputs, _, taps = layer.shape
        power = self._read(layer.source)[1].reshape(groups, -1).sum(axis=1)
        each = np.repeat(power * taps, outputs)
        return Rounded(np.asarray(largest, np.float64), each * columns * level)


def averages_positions(graph: ir.Graph) -> bool:
    """Whether no output of a model has positions: what is computed at each is averaged on the way."""
    return not any(_has_positions(value) for value in graph.outputs)


def _has_positions(value: ir.Value | None) -> bool:
    """Whether a tensor has more axes than samples and channels, as far as its shape is known."""
    if value is None or value.shape is None:
        return True
    return sum(size != 1 for size in value.shape.dims[1:]) > 1


@dataclasses.dataclass(frozen=True, slots=True)
class _Effect:
    """How much noise in each output of a consumer matters, and what noise in each channel does to them."""

    consumer: Consumer
    gains: DoubleArray
    columns: DoubleArray


def _blocks(kernel: FloatArray) -> list[slice]:
    """Return the outputs of a kernel in blocks that are computed with at a time, one at least."""
    groups, outputs, inputs, taps = kernel.shape
    step = max(1, _AT_ONCE // max(1, groups * inputs * taps))
    return [slice(first, first + step) for first in range(0, max(1, outputs), step)]


class _Energy:
    """The squares of a kernel, added up over its taps: of a large one some outputs at a time."""

    def __init__(self, kernel: FloatArray) -> None:
        self._kernel = kernel
        self._rows = _blocks(kernel)
        self._whole = self._squares(self._rows[0]) if len(self._rows) == 1 else None

    def of_outputs(self, inputs: DoubleArray) -> DoubleArray:
        """Return its product with a number for each input, groups x inputs x 1."""
        found = [energy @ inputs for _, energy in self._blocks()]
        return np.concatenate(found, axis=1) if len(found) > 1 else found[0]

    def of_inputs(self, outputs: DoubleArray) -> DoubleArray:
        """Return the product of a number for each output, groups x 1 x outputs, with it."""
        found = [outputs[:, :, rows] @ energy for rows, energy in self._blocks()]
        return np.asarray(np.sum(found, axis=0)) if len(found) > 1 else found[0]

    def _blocks(self) -> Iterator[tuple[slice, DoubleArray]]:
        for rows in self._rows:
            yield rows, self._squares(rows) if self._whole is None else self._whole

    def _squares(self, rows: slice) -> DoubleArray:
        part = self._kernel[:, rows]
        squares = np.square(part, dtype=np.float64)
        # To add up axes of one number each takes longer than all the rest.
        return squares[:, :, :, 0] if part.shape[3] == 1 else squares.sum(axis=3)


def _nothing(channels: int) -> Rounded:
    return Rounded(np.zeros(channels), np.zeros(channels))
