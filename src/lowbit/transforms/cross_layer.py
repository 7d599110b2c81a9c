"""Cross-layer equalization, over whole groups of layers.

A channel that several layers produce and several consume may be multiplied by t in all producers and
divided by t in all consumers. With r1 and r2 the channel's largest weight on either side, as a
fraction of the layer's largest, t = sqrt(r2 / r1) makes both equal, which is where the product of
both precisions is largest (Nagel et al. 2019, arXiv:1906.04721, equation 11). Fractions, because a
factor on a whole layer changes nothing that one scale for it would not undo, but would push
channels against their bounds. Kernels are arrays ``[group, out, in, rest]``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.transforms import CrossLayerEqualization
from lowbit.graph.editing import constant, replace_constant
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.transforms.bias_absorption import absorb
from lowbit.transforms.channel_groups import Group, Limit, Offset, find_groups
from lowbit.transforms.channel_statistics import ChannelSizes, channel_sizes
from lowbit.transforms.group_noise import NoiseOfGroups, read_axes
from lowbit.transforms.implementation import Context, TransformedModel
from lowbit.transforms.layers import WeightedLayer, input_ranges, output_ranges
from lowbit.transforms.noise_model import least_noise

# A round in which no factor changes by more than this (in octaves) is the last.
_SETTLED = 1e-3


def relative(ranges: FloatArray) -> FloatArray:
    """Return ranges as fractions of the largest of them."""
    return np.asarray(ranges / max(ranges.max(initial=0), np.finfo(np.float32).tiny))


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How far the factor of each channel may go; one where ``frozen``."""

    lowest: DoubleArray
    highest: DoubleArray
    frozen: NDArray[np.bool_]


def make_bounds(
    channels: int,
    limits: Sequence[tuple[float, DoubleArray]],
    *,
    largest: float,
    headroom: float = 1.0,
) -> Bounds:
    """Return the bounds of a group.

    Args:
        channels: How many channels the group has.
        limits: Upper bounds of the group's Clips, each with the largest value seen before it in
            every channel. A channel that stays below is free up to where it would not; one that
            does not must stay as it is.
        largest: The largest factor or divisor.
        headroom: How much more than the largest value seen must stay below.
    """
    highest = np.full(channels, largest)
    frozen = np.zeros(channels, bool)
    for bound, seen in limits:
        reach = np.maximum(seen, 0) * headroom
        # What is not a number is not below the bound either.
        frozen |= ~(reach < bound)
        with np.errstate(divide="ignore", over="ignore"):
            highest = np.fmin(highest, bound / reach)
    return Bounds(np.full(channels, 1 / largest), highest, frozen)


def next_factors(
    produced: FloatArray, consumed: FloatArray, total: DoubleArray, bounds: Bounds
) -> DoubleArray:
    """Return the factors in all, after ``total``, that make both ranges equal within bounds."""
    alive = (produced > 0) & (consumed > 0)
    ratio = np.divide(consumed, produced, out=np.ones(len(total)), where=alive, dtype=np.float64)
    wanted = np.clip(total * np.sqrt(ratio), bounds.lowest, bounds.highest)
    return np.where(bounds.frozen | ~alive, total, wanted)


def is_settled(before: DoubleArray, after: DoubleArray) -> bool:
    """Whether a round changed so little that another is not worth it."""
    return bool(np.abs(np.log2(after / before)).max(initial=0) < _SETTLED)


def is_capped(
    produced: FloatArray, consumed: FloatArray, total: DoubleArray, bounds: Bounds
) -> NDArray[np.bool_]:
    """Return the channels whose factor is limited by a bound."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        ideal = np.sqrt(np.asarray(consumed, np.float64) / produced)
    at_top = (total >= bounds.highest) & (ideal > 1 + _SETTLED)
    at_bottom = (total <= bounds.lowest) & (ideal < 1 - _SETTLED)
    return np.asarray((at_top | at_bottom) & np.isfinite(ideal) & (ideal > 0) & ~bounds.frozen)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The result for the channels that some layers produce and others consume.

    Attributes:
        tensor: One tensor of the group, to know it by.
        producers: Names of the layers that produce the channels; ``consumers`` of those that consume.
        channels: How many there are.
        frozen: How many of them reach the upper bound of a Clip, and so keep their weights.
        capped: How many of the others would have gone further without a bound.
    """

    tensor: str
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    channels: int
    frozen: int
    capped: int

    @property
    def free(self) -> int:
        """How many channels could be scaled."""
        return self.channels - self.frozen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SkippedGroup:
    """A group that was not touched, and why."""

    tensor: str
    why: str


@dataclasses.dataclass(slots=True, eq=False)
class _State:
    """A group while it is being equalized: how far its channels may go and have gone."""

    group: Group
    bounds: Bounds
    total: DoubleArray


class CrossLayer:
    """Cross-layer equalization of a graph: find the groups, measure what bounds them, scale."""

    def applies(self, model: ir.Model, config: CrossLayerEqualization) -> bool:
        """Whether a normalized model has anything that equalization may change."""
        return config.absorb or any(not group.obstacles for group in find_groups(model.graph))

    def apply(
        self, model: ir.Model, config: CrossLayerEqualization, context: Context
    ) -> TransformedModel:
        """Return a copy of ``model`` with all groups equalized.

        The data is run once if there are Clips, to see which channels never reach the upper bound;
        without data none of their channels is touched. It is run again to absorb biases.
        """
        found = equalize_groups(model, config, context)
        notes = [_summary(found.groups, found.skipped)]
        if config.absorb and context.data is not None:
            notes.append(absorb(found.model, config.headroom, context))
        return TransformedModel(found.model, tuple(notes))


@dataclasses.dataclass(frozen=True, slots=True)
class EqualizedGroups:
    """A model with equalized groups, and what became of each group."""

    model: ir.Model
    groups: tuple[GroupResult, ...]
    skipped: tuple[SkippedGroup, ...]


def equalize_groups(
    model: ir.Model, config: CrossLayerEqualization, context: Context
) -> EqualizedGroups:
    """Return a copy of ``model`` with the channels of all groups equalized."""
    model = model.clone()
    groups = find_groups(model.graph)
    usable = [group for group in groups if not group.obstacles]
    reads = read_axes(usable) if config.objective == "noise" else {}
    sizes = _measure(model, usable, reads, context)
    states = [_start(group, config, sizes) for group in usable]
    equalize = _equalize_ranges
    if sizes and sizes.keys() >= reads.keys() > set():
        equalize = functools.partial(_minimize_noise, NoiseOfGroups(usable, sizes, context.levels))
    for _ in range(config.rounds):
        settled = [equalize(state) for state in states]
        if all(settled):
            break
    layers = {id(layer): layer for group in usable for layer in _layers(group)}
    for layer in layers.values():
        layer.write(model.graph)
    for state in states:
        _scale_offsets(model.graph, state)
    skipped = tuple(
        SkippedGroup(tensor=group.name, why="; ".join(dict.fromkeys(group.obstacles)))
        for group in groups
        if group.obstacles
    )
    return EqualizedGroups(model, tuple(_result(state) for state in states), skipped)


def _measure(
    model: ir.Model, groups: list[Group], reads: Mapping[str, int], context: Context
) -> Mapping[str, ChannelSizes]:
    """Return the channel sizes of layer inputs and Clip outputs, from one pass.

    What is below a Clip's bound is what stands before it; to look at that as well would take every
    Clip out of the convolution that onnxruntime computes it in.
    """
    if context.data is None:
        return {}
    limits = {
        tensor_name(limit.value): limit.layout.axis for group in groups for limit in group.limits
    }
    return channel_sizes(model, {**reads, **limits}, context.data, context.progress)


def _start(
    group: Group, config: CrossLayerEqualization, sizes: Mapping[str, ChannelSizes]
) -> _State:
    limits = [(limit.bound, _maxima(group, limit, sizes)) for limit in group.limits]
    bounds = make_bounds(group.channels, limits, largest=config.largest, headroom=config.headroom)
    return _State(group, bounds, np.ones(group.channels))


def _maxima(group: Group, limit: Limit, sizes: Mapping[str, ChannelSizes]) -> DoubleArray:
    """Return the largest value before a Clip by channel: any at all, if its bound was reached."""
    known = sizes.get(tensor_name(limit.value))
    if known is None:
        return np.full(group.channels, np.inf)
    seen = known.maximum.reshape(-1, limit.layout.repeat).max(axis=1)
    return np.where(seen < limit.bound, seen, np.inf)


def _equalize_ranges(state: _State) -> bool:
    """Scale one group once; return whether that changed next to nothing. Changes its layers."""
    group, before = state.group, state.total
    state.total = next_factors(*_ranges(group), before, state.bounds)
    scale_group(group, state.total / before)
    return is_settled(before, state.total)


def scale_group(group: Group, factors: DoubleArray) -> None:
    """Multiply each channel in its producers and divide it in its consumers. Changes its layers."""
    step = factors.astype(np.float32)
    for producer in group.producers:
        producer.scale_outputs(step)
    for consumer in group.consumers:
        consumer.layer.scale_inputs(np.repeat(np.reciprocal(step), consumer.repeat))


def _minimize_noise(noise: NoiseOfGroups, state: _State) -> bool:
    """Scale one group once so that rounding adds least; return whether that changed next to nothing."""
    before, bounds = state.total, state.bounds
    frozen = bounds.frozen
    step = least_noise(
        noise.of(state.group, before),
        np.where(frozen, 1.0, np.minimum(bounds.lowest / before, 1.0)),
        np.where(frozen, 1.0, np.maximum(bounds.highest / before, 1.0)),
    )
    state.total = before * step
    scale_group(state.group, step)
    return is_settled(before, state.total)


def _ranges(group: Group) -> tuple[FloatArray, FloatArray]:
    """Return the largest weight by channel, relative to its layer's, produced and consumed."""
    produced = np.max([relative(output_ranges(layer.kernel)) for layer in group.producers], axis=0)
    consumed = np.max(
        [
            relative(input_ranges(consumer.layer.kernel)).reshape(-1, consumer.repeat).max(axis=1)
            for consumer in group.consumers
        ],
        axis=0,
    )
    return produced, consumed


def _layers(group: Group) -> list[WeightedLayer]:
    return [*group.producers, *(consumer.layer for consumer in group.consumers)]


def _scale_offsets(graph: ir.Graph, state: _State) -> None:
    for offset in state.group.offsets:
        replace_constant(graph, offset.node, offset.index, _scaled(offset, state.total))


def _scaled(offset: Offset, factors: DoubleArray) -> FloatArray:
    data = np.asarray(constant(offset.node.inputs[offset.index]))
    shape = [1] * data.ndim
    shape[offset.axis] = -1
    return np.asarray(data * factors.astype(np.float32).reshape(shape))


def _result(state: _State) -> GroupResult:
    group = state.group
    return GroupResult(
        tensor=group.name,
        producers=tuple(str(layer.node.name) for layer in group.producers),
        consumers=tuple(str(consumer.layer.node.name) for consumer in group.consumers),
        channels=group.channels,
        frozen=int(state.bounds.frozen.sum()),
        capped=int(is_capped(*_ranges(group), state.total, state.bounds).sum()),
    )


def _summary(groups: tuple[GroupResult, ...], skipped: tuple[SkippedGroup, ...]) -> str:
    free, frozen = sum(g.free for g in groups), sum(g.frozen for g in groups)
    text = f"equalized {free} channels in {len(groups)} groups"
    if frozen:
        text += f"; {frozen} channels reach the bound of a Clip and keep their weights"
    reasons = Counter(group.why for group in skipped)
    if reasons:
        most = ", ".join(f"{why} ({count})" for why, count in reasons.most_common(3))
        text += f"; skipped {len(skipped)} {'group' if len(skipped) == 1 else 'groups'}: {most}"
    return text
