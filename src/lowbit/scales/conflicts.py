"""Find tensors that must agree on a scale which ruins one of them.

Two kinds: parts of a Concat whose ranges are unlike, and an average with what it is taken of (peaks
of hundreds average to tens, and a step that holds the peaks is coarse for the averages).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from lowbit.calibrate.statistics import Stats
from lowbit.numerics.affine import QParams
from lowbit.planning.plan import AlignedGroup, Plan, TensorPlan
from lowbit.scales.alignment import merged
from lowbit.scales.density import Density
from lowbit.scales.ranges import params_of, params_of_range
from lowbit.scales.search import error_of

# A part that keeps less than this, in decibels, of what it had on its own is ruined.
_RUINED = 10.0
_LOSES = 15.0
# An average loses this, in decibels, when its scale is coarser than its own by a power of two.
_COARSER = 4.5
_AVERAGES = ("AveragePool", "GlobalAveragePool")


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleConflict:
    """A part of a join, and its SQNR alone and under the common scale."""

    node: str
    tensor: str
    own_scale_db: float
    shared_scale_db: float


def scale_conflicts(plan: Plan, stats: Stats) -> list[ScaleConflict]:
    """Return the parts that the join they are in would ruin."""
    return [
        join
        for group in plan.integers().groups
        if group.op_type == "Concat"
        for name in group.inputs
        if (join := _measure(plan, stats, group, name)) is not None
        and join.shared_scale_db < _RUINED
        and join.own_scale_db - join.shared_scale_db > _LOSES
    ]


def coarse_averages(plan: Plan, stats: Stats) -> list[ScaleConflict]:
    """Return the averages that the scale of their input would make at least twice as coarse."""
    tensors = plan.by_name()
    found = []
    for group in plan.integers().groups:
        if group.op_type not in _AVERAGES:
            continue
        parts = [tensors[tensors[n].leader] for n in (*group.inputs, *group.outputs)]
        if not _are_measured(parts, stats):
            continue
        join = _compared(group.node, parts[-1].name, parts[-1], stats, merged(parts, stats))
        if join is not None and join.own_scale_db - join.shared_scale_db > _COARSER:
            found.append(join)
    return found


def _measure(plan: Plan, stats: Stats, group: AlignedGroup, name: str) -> ScaleConflict | None:
    tensors = plan.by_name()
    parts = [tensors[tensors[n].leader] for n in group.inputs]
    own = tensors[tensors[name].leader]
    if not _are_measured(parts, stats):
        return None
    low = min(stats[p.observe].low for p in parts)
    high = max(stats[p.observe].high for p in parts)
    return _compared(group.node, name, own, stats, params_of_range((low, high), own.integer))


def _are_measured(parts: Sequence[TensorPlan], stats: Stats) -> bool:
    return all(p.range is None and stats[p.observe].counts is not None for p in parts)


def _compared(
    node: str, name: str, own: TensorPlan, stats: Stats, joined: QParams
) -> ScaleConflict | None:
    """Return what a tensor keeps with parameters of its own and with those it must share."""
    density = Density.of(stats[own.observe], name)
    power, spec = density.power(), own.integer
    if power <= 0:
        return None
    alone = params_of(stats[own.observe], spec, name)
    ratios = (_decibels(power, error_of(density, p, spec)) for p in (alone, joined))
    return ScaleConflict(node, name, *ratios)


def _decibels(signal: float, noise: float) -> float:
    return 10 * math.log10(signal / noise) if noise > 0 else math.inf
