"""Find tensors that must agree on a scale which ruins one of them.

Two kinds: parts of a Concat whose ranges are unlike, and an average with what it is taken of (peaks
of hundreds average to tens, and a step that holds the peaks is coarse for the averages).
"""

from __future__ import annotations

import dataclasses
import math

from lowbit.calibrate.stats import Stats
from lowbit.plan.plan import AlignedGroup, Plan
from lowbit.resolve.align import merged
from lowbit.resolve.density import Density
from lowbit.resolve.ranges import params_of, params_of_range
from lowbit.resolve.search import error_of

# A part that keeps less than this, in decibels, of what it had on its own is ruined.
_RUINED = 10.0
_LOSES = 15.0
# An average loses this, in decibels, when its scale is coarser than its own by a power of two.
_COARSER = 4.5
_AVERAGES = ("AveragePool", "GlobalAveragePool")


@dataclasses.dataclass(frozen=True, slots=True)
class UnlikeJoin:
    """A part of a join, and its signal-to-noise ratio alone and under the common scale."""

    node: str
    tensor: str
    alone_db: float
    joined_db: float


def unlike_joins(plan: Plan, stats: Stats) -> list[UnlikeJoin]:
    """Return the parts that the join they are in would ruin."""
    return [
        join
        for group in plan.integers().groups
        if group.op_type == "Concat"
        for name in group.inputs
        if (join := _measure(plan, stats, group, name)) is not None
        and join.joined_db < _RUINED
        and join.alone_db - join.joined_db > _LOSES
    ]


def coarse_averages(plan: Plan, stats: Stats) -> list[UnlikeJoin]:
    """Return the averages that the scale of their input would make at least twice as coarse."""
    tensors = plan.by_name()
    found = []
    for group in plan.integers().groups:
        if group.op_type not in _AVERAGES:
            continue
        parts = [tensors[tensors[n].leader] for n in (*group.inputs, *group.outputs)]
        own = parts[-1]
        if any(p.range is not None or stats[p.observe].counts is None for p in parts):
            continue
        density = Density.of(stats[own.observe], own.name)
        power, spec = density.power(), own.integer
        if power <= 0:
            continue
        alone = error_of(density, params_of(stats[own.observe], spec, own.name), spec)
        joined = error_of(density, merged(parts, stats), spec)
        join = UnlikeJoin(group.node, own.name, _decibels(power, alone), _decibels(power, joined))
        if join.alone_db - join.joined_db > _COARSER:
            found.append(join)
    return found


def _measure(plan: Plan, stats: Stats, group: AlignedGroup, name: str) -> UnlikeJoin | None:
    tensors = plan.by_name()
    parts = [tensors[tensors[n].leader] for n in group.inputs]
    own = tensors[tensors[name].leader]
    if any(p.range is not None or stats[p.observe].counts is None for p in parts):
        return None
    low = min(stats[p.observe].low for p in parts)
    high = max(stats[p.observe].high for p in parts)
    density = Density.of(stats[own.observe], name)
    power = density.power()
    if power <= 0:
        return None
    spec = own.integer
    alone = error_of(density, params_of(stats[own.observe], spec, name), spec)
    joined = error_of(density, params_of_range((low, high), spec), spec)
    return UnlikeJoin(group.node, name, _decibels(power, alone), _decibels(power, joined))


def _decibels(signal: float, noise: float) -> float:
    return 10 * math.log10(signal / noise) if noise > 0 else math.inf
