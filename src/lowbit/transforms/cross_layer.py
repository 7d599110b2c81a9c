"""What equalization gives: the model, and what was and was not done to it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.config.transforms import CrossLayerEqualization
from lowbit.graph.editing import constant
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Feed
from lowbit.numerics.formats import FloatArray
from lowbit.transforms._cross_layer_math import (
    Bounds,
    DoubleArray,
    input_peaks,
    is_capped,
    is_settled,
    make_bounds,
    next_factors,
    output_peaks,
    relative,
)
from lowbit.transforms.bias_absorption import absorb
from lowbit.transforms.channel_groups import Group, Offset, find_groups
from lowbit.transforms.channel_statistics import channel_maxima
from lowbit.transforms.layers import Layer, give_constant


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What happened to the channels that some layers write and others read.

    Attributes:
        tensor: One tensor of the group, to know it by.
        writers: Names of the layers that write the channels; ``readers`` of those that read them.
        channels: How many there are.
        frozen: How many of them reach the upper bound of a Clip, and so keep their weights.
        capped: How many of the others would have gone further without a bound.
    """

    tensor: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    channels: int
    frozen: int
    capped: int

    @property
    def free(self) -> int:
        """How many channels could be scaled."""
        return self.channels - self.frozen


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A group that was not touched, and why."""

    tensor: str
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Equalized:
    """A model that computes the same in float, and an account of what was done."""

    model: ir.Model
    notes: tuple[str, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@dataclasses.dataclass(slots=True, eq=False)
class _State:
    """A group while it is being equalized: how far its channels may go and have gone."""

    group: Group
    bounds: Bounds
    total: DoubleArray


def can_equalize(model: ir.Model, config: CrossLayerEqualization) -> bool:
    """Whether a normalized model has anything that equalization may change."""
    return config.absorb or any(not group.obstacles for group in find_groups(model.graph))


def equalize_groups(
    model: ir.Model,
    config: CrossLayerEqualization,
    data: Iterable[Feed] | None,
    progress: Callable[[int], None] = lambda _: None,
) -> Equalized:
    """Return a copy of ``model`` with all groups equalized.

    ``data`` is run once if there are Clips, to see which channels never reach the upper bound;
    without data none of their channels is touched. It is run again to absorb biases.
    """
    model = model.clone()
    groups = find_groups(model.graph)
    usable = [group for group in groups if not group.obstacles]
    maxima = _measure(model, usable, data, progress)
    states = [_start(group, config, maxima) for group in usable]
    for _ in range(config.rounds):
        settled = [_balance(state) for state in states]
        if all(settled):
            break
    layers = {id(layer): layer for group in usable for layer in _layers(group)}
    for layer in layers.values():
        layer.write(model.graph)
    for state in states:
        _scale_offsets(model.graph, state)
    results = tuple(_result(state) for state in states)
    left_out = tuple(
        LeftOut(tensor=group.name, why="; ".join(dict.fromkeys(group.obstacles)))
        for group in groups
        if group.obstacles
    )
    notes = [_summary(results, left_out)]
    if config.absorb and data is not None:
        notes.append(absorb(model, config.headroom, data, progress))
    return Equalized(model, tuple(notes), results, left_out)


def _measure(
    model: ir.Model,
    groups: list[Group],
    data: Iterable[Feed] | None,
    progress: Callable[[int], None],
) -> Mapping[str, DoubleArray]:
    limits = [limit for group in groups for limit in group.limits]
    if not limits or data is None:
        return {}
    return channel_maxima(model, [(lim.value, lim.place) for lim in limits], data, progress)


def _start(
    group: Group, config: CrossLayerEqualization, maxima: Mapping[str, DoubleArray]
) -> _State:
    unknown = np.full(group.channels, np.inf)
    limits = [
        (limit.bound, maxima.get(tensor_name(limit.value), unknown)) for limit in group.limits
    ]
    bounds = make_bounds(group.channels, limits, largest=config.largest, headroom=config.headroom)
    return _State(group, bounds, np.ones(group.channels))


def _balance(state: _State) -> bool:
    """Scale one group once; return whether that changed next to nothing. Changes its layers."""
    group, before = state.group, state.total
    state.total = next_factors(*_peaks(group), before, state.bounds)
    step = (state.total / before).astype(np.float32)
    for writer in group.writers:
        writer.scale_outputs(step)
    for reader in group.readers:
        reader.layer.scale_inputs(np.repeat(np.reciprocal(step), reader.repeat))
    return is_settled(before, state.total)


def _peaks(group: Group) -> tuple[FloatArray, FloatArray]:
    """Return the largest weight by channel, relative to its layer's, written and read."""
    written = np.max([relative(output_peaks(layer.kernel)) for layer in group.writers], axis=0)
    read = np.max(
        [
            relative(input_peaks(reader.layer.kernel)).reshape(-1, reader.repeat).max(axis=1)
            for reader in group.readers
        ],
        axis=0,
    )
    return written, read


def _layers(group: Group) -> list[Layer]:
    return [*group.writers, *(reader.layer for reader in group.readers)]


def _scale_offsets(graph: ir.Graph, state: _State) -> None:
    for offset in state.group.offsets:
        give_constant(graph, offset.node, offset.index, _scaled(offset, state.total))


def _scaled(offset: Offset, factors: DoubleArray) -> FloatArray:
    data = np.asarray(constant(offset.node.inputs[offset.index]))
    shape = [1] * data.ndim
    shape[offset.axis] = -1
    return np.asarray(data * factors.astype(np.float32).reshape(shape))


def _result(state: _State) -> GroupResult:
    group = state.group
    return GroupResult(
        tensor=group.name,
        writers=tuple(str(layer.node.name) for layer in group.writers),
        readers=tuple(str(reader.layer.node.name) for reader in group.readers),
        channels=group.channels,
        frozen=int(state.bounds.frozen.sum()),
        capped=int(is_capped(*_peaks(group), state.total, state.bounds).sum()),
    )


def _summary(groups: tuple[GroupResult, ...], left_out: tuple[LeftOut, ...]) -> str:
    free, frozen = sum(g.free for g in groups), sum(g.frozen for g in groups)
    text = f"equalized {free} channels in {len(groups)} groups"
    if frozen:
        text += f"; {frozen} channels reach the bound of a Clip and were left alone"
    reasons = Counter(group.why for group in left_out)
    if reasons:
        most = ", ".join(f"{why} ({count})" for why, count in reasons.most_common(3))
        text += f"; left out {len(left_out)} groups: {most}"
    return text
