"""Solve for the parameters of every planned tensor.

Order matters and is all here: each activation on its own, alignment, constants, the datapath's
limits on positions, then biases, which depend on all of it.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from lowbit.calibrate.stats import Stats
from lowbit.config.specs import ProductBias
from lowbit.graph.constants import constant
from lowbit.numerics.formats import Floats
from lowbit.numerics.qparams import QParams, power_of_two_qparams
from lowbit.plan.plan import Plan
from lowbit.resolve.align import align, components
from lowbit.resolve.bias import bias_params, repaired_weight
from lowbit.resolve.density import Density
from lowbit.resolve.limited_nodes import find_limited
from lowbit.resolve.limits import Limited, Moved, satisfy
from lowbit.resolve.params import Adjustment, Params
from lowbit.resolve.ranges import params_of, params_of_range
from lowbit.resolve.search import error_of
from lowbit.resolve.weights import weight_params
from lowbit.targets.target import Target


def resolve(model: ir.Model, plan: Plan, stats: Stats, target: Target) -> Params:
    """Return the parameters of every planned tensor and bias."""
    own = _own(plan, stats)
    leaders = align(plan, own, stats)
    adjustments = _alignment_costs(plan, stats, own, leaders)
    weights = {t.name: weight_params(_data(model, t.name), t.spec, t.axis) for t in plan.weights()}
    biases = _first_biases(model, plan, leaders, weights)
    if target.limits is not None:
        nodes = find_limited(model, plan, target)
        moved = _apply_limits(plan, target, nodes, leaders, weights, biases)
        adjustments += [_adjustment(m, plan, stats) for m in moved]
    adjustments += _repair(model, plan, leaders, weights)
    before = _product_biases(model, plan, own, weights)
    biases |= _product_biases(model, plan, leaders, weights)
    tensors = {t.name: leaders[t.leader] for t in plan.activations()} | weights
    return Params(tensors, biases, tuple(adjustments), before)


def _own(plan: Plan, stats: Stats) -> dict[str, QParams]:
    own = {}
    for tensor in plan.activations():
        if tensor.leader != tensor.name:
            continue
        if tensor.range is not None:
            own[tensor.name] = params_of_range(tensor.range, tensor.spec)
        else:
            own[tensor.name] = params_of(stats[tensor.observe], tensor.spec, tensor.name)
    return own


def _data(model: ir.Model, name: str) -> Floats:
    data = constant(model.graph.initializers[name])
    if data is None:
        raise ValueError(f"the plan lists {name!r} as a constant, but it has no data")
    return np.asarray(data, np.float32)


def _first_biases(
    model: ir.Model, plan: Plan, leaders: dict[str, QParams], weights: dict[str, QParams]
) -> dict[str, QParams]:
    """Return the parameters of the biases that have a scale of their own."""
    found = {}
    for row in plan.biases:
        if not isinstance(row.spec, ProductBias):
            weight = weights.get(row.weight)
            source = leaders.get(row.input)
            found[row.node] = bias_params(
                _data(model, row.tensor), row, source or _NOTHING, weight or _NOTHING
            )
    return found


_NOTHING = QParams(np.float32(1.0), np.int8(0), None)  # type: ignore[arg-type]


def _product_biases(
    model: ir.Model, plan: Plan, leaders: dict[str, QParams], weights: dict[str, QParams]
) -> dict[str, QParams]:
    leader = {t.name: t.leader for t in plan.tensors}
    return {
        row.node: bias_params(
            _data(model, row.tensor), row, leaders[leader[row.input]], weights[row.weight]
        )
        for row in plan.biases
        if isinstance(row.spec, ProductBias)
    }


def _repair(
    model: ir.Model, plan: Plan, leaders: dict[str, QParams], weights: dict[str, QParams]
) -> list[Adjustment]:
    """Enlarge weight scales where a bias would overflow. Changes ``weights``."""
    leader = {t.name: t.leader for t in plan.tensors}
    adjustments = []
    for row in plan.biases:
        if not isinstance(row.spec, ProductBias):
            continue
        source, weight = leaders[leader[row.input]], weights[row.weight]
        grown = repaired_weight(_data(model, row.tensor), row, source, weight)
        if grown is not None:
            weights[row.weight] = grown
            adjustments.append(
                Adjustment(
                    row.weight,
                    float(weight.scale.max()),
                    float(grown.scale.max()),
                    f"the bias of {row.node} would overflow {row.spec.format.value}",
                )
            )
    return adjustments


def _apply_limits(
    plan: Plan,
    target: Target,
    nodes: list[Limited],
    leaders: dict[str, QParams],
    weights: dict[str, QParams],
    biases: dict[str, QParams],
) -> list[Moved]:
    """Move positions until the datapath's limits hold. Changes the three dicts."""
    if target.limits is None:
        return []
    tables = {"a": leaders, "w": weights, "b": biases}
    positions = {
        f"{kind}:{name}": params.position
        for kind, table in tables.items()
        for name, params in table.items()
    }
    ties = [*components(plan, "lowest"), *components(plan, "merged")]
    groups = [tuple(f"a:{name}" for name in members) for members in ties]
    prefer = target.calibrate_arithmetic
    solved, moved = satisfy(nodes, positions, groups, target.limits, prefer_lowering=prefer)
    for key, position in solved.items():
        kind, name = key.split(":", 1)
        if positions[key] != position:
            tables[kind][name] = power_of_two_qparams(position, tables[kind][name].format)
    return moved


def _alignment_costs(
    plan: Plan, stats: Stats, own: dict[str, QParams], aligned: dict[str, QParams]
) -> list[Adjustment]:
    tensors = plan.by_name()
    return [
        Adjustment(
            name,
            float(own[name].scale),
            float(aligned[name].scale),
            "kept equal with the tensors it is joined to",
            _cost(plan, stats, name, own[name], aligned[name]),
        )
        for name in own
        if float(own[name].scale) != float(aligned[name].scale) and name in tensors
    ]


def _adjustment(moved: Moved, plan: Plan, stats: Stats) -> Adjustment:
    kind, name = moved.tensor.split(":", 1)
    cost = None
    if kind == "a":
        spec = plan.by_name()[name].spec
        before, after = (
            power_of_two_qparams(position, spec.format) for position in (moved.before, moved.after)
        )
        cost = _cost(plan, stats, name, before, after)
    label = f"bias of {name}" if kind == "b" else name
    return Adjustment(label, 2.0**-moved.before, 2.0**-moved.after, moved.why, cost)


def _cost(plan: Plan, stats: Stats, name: str, before: QParams, after: QParams) -> float | None:
    """Return how many decibels of its own signal-to-noise ratio a tensor loses."""
    tensor = plan.by_name()[name]
    if tensor.range is not None or stats[tensor.observe].counts is None:
        return None
    density = Density.of(stats[tensor.observe], name)
    errors = [error_of(density, params, tensor.spec) for params in (before, after)]
    if min(errors) <= 0:
        return None
    return 10 * math.log10(errors[1] / errors[0])
