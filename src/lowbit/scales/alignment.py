"""Align the parameters of tensors that must share them, and find scale conflicts.

There are two kinds of conflict: inputs of a Concat with very different ranges, and an average with what it is
taken of (maxima of hundreds average to tens, and a scale that holds the maxima is coarse for the
averages).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from lowbit.calibrate.observers import observer_of
from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.methods import MinMse
from lowbit.config.specs import IntegerSpec
from lowbit.graph.disjoint_sets import DisjointSets
from lowbit.numerics.affine import QParams, power_of_two_qparams, range_qparams
from lowbit.numerics.metrics import decibels
from lowbit.ops.families import MEAN_POOLS
from lowbit.planning.plan import AlignedGroup, Plan, TensorPlan
from lowbit.scales.density import Density, DoubleArray, SensitiveDensity
from lowbit.scales.ranges import params_of, params_of_range
from lowbit.scales.search import error_of, power_of_two_candidates, power_of_two_errors

_ROUNDS = 5
_RATIOS = np.linspace(0.1, 1.0, 46)

OwnParams = dict[str, QParams]
"""Parameters of the leaders, by name."""


def align(plan: Plan, own: Mapping[str, QParams], stats: Stats) -> OwnParams:
    """Return the parameters of all leaders, made equal where the plan wants them equal."""
    aligned = dict(own)
    tensors = plan.by_name()
    for members in components(plan, "merged"):
        shared = merged([tensors[name] for name in members], stats)
        aligned.update(dict.fromkeys(members, shared))
    _copy_along_nodes(plan, aligned)
    lower_to_common(plan, aligned)
    return aligned


def components(plan: Plan, rule: str) -> list[tuple[str, ...]]:
    """Return the sets of leaders that groups of this rule connect."""
    tensors = plan.by_name()
    sets: DisjointSets[str] = DisjointSets()
    for group in plan.groups:
        if group.rule == rule:
            names = [tensors[n].leader for n in (*group.inputs, *group.outputs) if n in tensors]
            if names:
                sets.join(*names)
    return [tuple(names) for names in sets.sets() if len(names) > 1]


def read_together(plan: Plan) -> set[str]:
    """Return the tensors that share a scale with one whose method reads histograms: then all are read."""
    specs = {tensor.name: tensor.spec.calibration for tensor in plan.activations()}
    found: set[str] = set()
    for names in components(plan, "merged"):
        methods = [method for name in names if (method := specs.get(name)) is not None]
        if any(observer_of(method).histogram for method in methods):
            found.update(names)
    return found


def lower_to_common(plan: Plan, params: OwnParams) -> None:
    """Give every group of the rule ``lowest`` the coarsest scale in it. Changes ``params``."""
    for members in components(plan, "lowest"):
        coarsest = max((params[name] for name in members), key=lambda p: float(p.scale))
        params.update(dict.fromkeys(members, coarsest))


def _copy_along_nodes(plan: Plan, params: OwnParams) -> None:
    """Copy parameters from outputs to inputs (or the reverse), node after node."""
    leader = {t.name: t.leader for t in plan.tensors}
    groups = [g for g in plan.groups if g.rule in ("output", "input")]
    for _ in range(_ROUNDS):
        before = dict(params)
        for group in groups:
            first, rest = (group.outputs, group.inputs)
            if group.rule == "input":
                first, rest = rest, first
            for name in rest:
                params[leader[name]] = params[leader[first[0]]]
        if all(params[name] is before[name] for name in params):
            break


def merged(members: Iterable[TensorPlan], stats: Stats) -> QParams:
    """Return the parameters with the least error for all these tensors together."""
    members = list(members)
    spec = members[0].integer
    fixed = [m.range for m in members if m.range is not None]
    if fixed:
        # A range somebody asked for holds for all that must agree with it.
        return params_of_range((min(r[0] for r in fixed), max(r[1] for r in fixed)), spec)
    measured = [stats[m.observe] for m in members]
    if isinstance(spec.method, MinMse) and spec.symmetric:
        return _least_relative_error(measured, spec)
    # Channel means are a tensor's own: those of different tensors have nothing in common.
    measured = [dataclasses.replace(s, totals=None) for s in measured]
    return params_of(functools.reduce(operator.or_, measured), spec, members[0].name)


def _least_relative_error(measured: list[TensorStats], spec: IntegerSpec) -> QParams:
    """Return the scale with the least sum of noise-to-signal ratios.

    Ratios, not errors: a pooled tensor of few values counts as much as the large one before it.
    """
    low, high = min(s.low for s in measured), max(s.high for s in measured)
    densities = _densities(measured)
    top = max(abs(low), abs(high))
    if not any(d.weight.any() for d in densities):
        return params_of_range((low, high), spec)
    if spec.power_of_two:
        candidates = power_of_two_candidates(low, high, spec)
        errors = _relative(densities, lambda d: power_of_two_errors(d, candidates, spec))
        return power_of_two_qparams(candidates[int(np.argmin(errors))], spec.format)
    tried = [
        range_qparams(
            -top * r, top * r, spec.format, symmetric=True, reduce_range=spec.reduce_range
        )
        for r in _RATIOS
    ]
    qmin, qmax = spec.format.limits(symmetric=True, reduce_range=spec.reduce_range)
    scale = np.array([float(p.scale) for p in tried])
    zero = int(tried[0].zero_point)
    errors = _relative(
        densities, lambda d: d.squared_error(scale, scale * (qmin - zero), scale * (qmax - zero))
    )
    return tried[int(np.argmin(errors))]


def _densities(measured: Sequence[TensorStats]) -> Sequence[Density]:
    """Return the densities of tensors, by their sensitivity if that of all is known."""
    counted = [stats for stats in measured if stats.count]
    weighted = [
        SensitiveDensity.of_sensitivity(stats, stats.sensitivity)
        for stats in counted
        if stats.sensitivity is not None
    ]
    return weighted if len(weighted) == len(counted) else [Density.of(stats) for stats in counted]


def _relative(
    densities: Sequence[Density], errors: Callable[[Density], DoubleArray]
) -> DoubleArray:
    return np.asarray(sum(errors(d) / d.unit for d in densities))


# An input that keeps less than this, in decibels, of what it had on its own is ruined.
_RUINED = 10.0
_LOSES = 15.0
# An average loses this, in decibels, when its scale is coarser than its own by a power of two.
_COARSER = 4.5


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleConflict:
    """A tensor that shares a scale, and its SQNR in dB with a scale of its own and with the shared one."""

    node: str
    tensor: str
    own_scale_db: float
    shared_scale_db: float


def scale_conflicts(plan: Plan, stats: Stats) -> list[ScaleConflict]:
    """Return the inputs of a Concat that the shared scale would ruin."""
    return [
        conflict
        for group in plan.integers().groups
        if group.op_type == "Concat"
        for name in group.inputs
        if (conflict := _measure(plan, stats, group, name)) is not None
        and conflict.shared_scale_db < _RUINED
        and conflict.own_scale_db - conflict.shared_scale_db > _LOSES
    ]


def coarse_averages(plan: Plan, stats: Stats) -> list[ScaleConflict]:
    """Return the averages that the scale of their input would make at least twice as coarse."""
    tensors = plan.by_name()
    found = []
    for group in plan.integers().groups:
        if group.op_type not in MEAN_POOLS:
            continue
        members = [tensors[tensors[n].leader] for n in (*group.inputs, *group.outputs)]
        if not _are_measured(members, stats):
            continue
        conflict = _compared(
            group.node, members[-1].name, members[-1], stats, merged(members, stats)
        )
        if conflict is not None and conflict.own_scale_db - conflict.shared_scale_db > _COARSER:
            found.append(conflict)
    return found


def _measure(plan: Plan, stats: Stats, group: AlignedGroup, name: str) -> ScaleConflict | None:
    tensors = plan.by_name()
    members = [tensors[tensors[n].leader] for n in group.inputs]
    own = tensors[tensors[name].leader]
    if not _are_measured(members, stats):
        return None
    low = min(stats[p.observe].low for p in members)
    high = max(stats[p.observe].high for p in members)
    return _compared(group.node, name, own, stats, params_of_range((low, high), own.integer))


def _are_measured(members: Sequence[TensorPlan], stats: Stats) -> bool:
    return all(p.range is None and stats[p.observe].counts is not None for p in members)


def _compared(
    node: str, name: str, own: TensorPlan, stats: Stats, shared: QParams
) -> ScaleConflict | None:
    """Return a tensor's SQNR with parameters of its own and with the shared ones."""
    density = Density.of(stats[own.observe], name)
    power, spec = density.power(), own.integer
    if power <= 0:
        return None
    own_params = params_of(stats[own.observe], spec, name)
    ratios = (decibels(power, error_of(density, p, spec)) for p in (own_params, shared))
    return ScaleConflict(node, name, *ratios)
