"""Compute the parameters of every planned tensor.

Order matters and is all here: each activation on its own, alignment, constants, the datapath's
limits on fraction bits, then biases, which depend on all of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping

import onnx_ir as ir

from lowbit.calibrate.statistics import Stats
from lowbit.graph.memory import garbage_collection_paused
from lowbit.graph.parts import is_large
from lowbit.numerics.affine import QParams, power_of_two_qparams
from lowbit.numerics.formats import FloatArray
from lowbit.numerics.metrics import decibels
from lowbit.parallel import cpu_count, ordered_map
from lowbit.planning.plan import BiasPlan, Plan, TensorPlan
from lowbit.scales.alignment import align, components
from lowbit.scales.bias import bias_params, repaired_weight
from lowbit.scales.curves import PricedDensities
from lowbit.scales.density import Density
from lowbit.scales.formats import float_scales
from lowbit.scales.limited_nodes import find_limited
from lowbit.scales.parameters import Adjustment, Params, bias_values, constant_values
from lowbit.scales.ranges import params_holding, params_of, params_of_range
from lowbit.scales.saturation import SummedPairs, pairs_of
from lowbit.scales.search import best_params, error_of
from lowbit.scales.shift_limits import Adjusted, Limited, bounded_bias, satisfy
from lowbit.scales.solver_cache import SolverCache
from lowbit.scales.weights import Importance, weight_importance, weight_params
from lowbit.targets.target import Target

# Weights that are searched at a time, each in a few arrays of its size.
_AT_ONCE = 4


@garbage_collection_paused()
def solve(
    model: ir.Model,
    plan: Plan,
    stats: Stats,
    target: Target,
    known: SolverCache | None = None,
    constants: SolverCache | None = None,
) -> Params:
    """Return the parameters of every planned tensor and bias.

    ``known`` are solutions of other plans for the same model and statistics, ``constants`` those for the same
    model and any statistics.
    """
    known = SolverCache() if known is None else known
    constants = known if constants is None else constants
    scales = float_scales(model, plan, stats)
    plan = plan.integers()
    own = _own(model, plan, stats, known)
    leaders = align(plan, own, stats)
    adjustments = _alignment_costs(plan, stats, own, leaders)
    importance = weight_importance(model, plan, stats)
    pairs = pairs_of(model, plan)

    def weight(t: TensorPlan) -> QParams:
        return (known if t.name in importance else constants).get(
            ("weight", t.name, t.integer, t.axis, t.name in importance, t.pairs),
            functools.partial(_weight, model, t, importance.get(t.name, _none), pairs.get(t.name)),
        )

    rows = plan.weights()
    solved = ordered_map(weight, rows, _threads(model))
    weights = dict(zip((t.name for t in rows), solved, strict=True))
    moved = _apply_limits(model, plan, target, leaders, weights)
    planned = plan.by_name()
    adjustments += [_adjustment(m, planned[m.tensor], stats) for m in moved]
    adjustments += _repair(model, plan, leaders, weights)
    tensors = {t.name: leaders[t.leader] for t in plan.activations()} | weights
    unaligned = {t.name: own[t.leader] for t in plan.activations()} | weights
    before = {
        row.node: bias_params(bias_values(model, row), row, unaligned)
        for row in plan.biases
        if row.spec.is_accumulator
    }
    params = Params(tensors, {}, tuple(adjustments), biases_before=before, scales=scales)
    return settle_biases(model, plan, params, target, {})


def _threads(model: ir.Model) -> int:
    """Return how many tensors are solved at a time: one of many small ones, or where weights are large."""
    return 1 if is_large(model) else min(cpu_count(), _AT_ONCE)


def settle_biases(
    model: ir.Model, plan: Plan, params: Params, target: Target, values: Mapping[str, FloatArray]
) -> Params:
    """Return ``params`` with the parameters of all biases.

    ``values`` are float biases, by node, that replace the model's own (``bias_values``).
    """
    limits = target.limits
    found = [] if limits is None else find_limited(model, plan, limits)
    limited = {node.node: node for node in found}
    biases: dict[str, QParams] = {}
    moved: dict[str, Adjustment] = {}
    for row in plan.biases:
        bias = values[row.node] if row.node in values else bias_values(model, row)
        biases[row.node], adjustment = settle_bias(row, bias, limited.get(row.node), params, target)
        if adjustment is not None:
            moved[row.node] = adjustment
    adjustments = [a for a in params.adjustments if not a.tensor.startswith(_BIAS_OF)]
    adjustments += [moved[name] for name in limited if name in moved]
    return dataclasses.replace(
        params, biases=biases, adjustments=tuple(adjustments), bias_values=dict(values)
    )


def _none() -> None:
    """Return no importance: all errors count equally."""


_BIAS_OF = "bias of "


def settle_bias(
    row: BiasPlan, bias: FloatArray, limited: Limited | None, params: Params, target: Target
) -> tuple[QParams, Adjustment | None]:
    """Return the parameters of one bias, and what the datapath's limits changed about them.

    ``limited`` is what is limited about its node, if anything.
    """
    own = bias_params(bias, row, params.tensors)
    if limited is None or target.limits is None or not limited.has_bias:
        return own, None
    bits = {name: params.tensors[name].fraction_bits for name in limited.tensors()}
    bounded = bounded_bias(limited, bits, own.fraction_bits, target.limits)
    if bounded == own.fraction_bits:
        return own, None
    why = f"shift bias of {limited.op_type} {row.node}"
    moved = Adjustment(f"{_BIAS_OF}{row.node}", float(own.scale), 2.0**-bounded, why)
    return power_of_two_qparams(bounded, own.format), moved


def _weight(
    model: ir.Model,
    tensor: TensorPlan,
    importance: Callable[[], Importance | None],
    pairs: SummedPairs | None,
) -> QParams:
    data = constant_values(model, tensor.name)
    return weight_params(data, tensor.integer, tensor.axis, importance(), pairs)


def _own(model: ir.Model, plan: Plan, stats: Stats, known: SolverCache) -> dict[str, QParams]:
    priced = PricedDensities.of(model, plan, stats)

    def params(tensor: TensorPlan) -> QParams:
        if tensor.range is not None:
            return params_of_range(tensor.range, tensor.integer)
        return known.get(
            ("own", tensor.name, tensor.observe, tensor.integer, tensor.headroom),
            functools.partial(_measured, tensor, stats, priced),
        )

    leaders = [tensor for tensor in plan.activations() if tensor.leader == tensor.name]
    found = ordered_map(params, leaders, _threads(model))
    return dict(zip((tensor.name for tensor in leaders), found, strict=True))


def _measured(tensor: TensorPlan, stats: Stats, priced: PricedDensities) -> QParams:
    """Return the parameters that an activation's method chooses for its statistics."""
    seen, density = stats[tensor.observe], priced.of_tensor(tensor)
    if density is None:
        found = params_of(seen, tensor.integer, tensor.name)
    else:
        found = best_params(density, seen.low, seen.high, tensor.integer)
    if tensor.headroom is None:
        return found
    return params_holding(found, (seen.low, seen.high), tensor.headroom, tensor.integer)


def _repair(
    model: ir.Model, plan: Plan, leaders: dict[str, QParams], weights: dict[str, QParams]
) -> list[Adjustment]:
    """Enlarge weight scales where a bias would overflow. Changes ``weights``."""
    leader = {t.name: t.leader for t in plan.tensors}
    specs = plan.by_name()
    adjustments = []
    for row in plan.biases:
        if not row.spec.is_accumulator:
            continue
        source, weight = leaders[leader[row.input]], weights[row.weight]
        grown = repaired_weight(
            bias_values(model, row),
            row,
            {row.input: source, row.weight: weight},
            power_of_two=specs[row.weight].integer.power_of_two,
        )
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
    model: ir.Model,
    plan: Plan,
    target: Target,
    leaders: dict[str, QParams],
    weights: dict[str, QParams],
) -> list[Adjusted]:
    """Change fraction bits until the datapath's limits hold. Changes the two dicts."""
    if target.limits is None:
        return []
    leader = {t.name: t.leader for t in plan.tensors}
    nodes = [node.renamed(leader) for node in find_limited(model, plan, target.limits)]
    params = leaders | weights
    bits = {name: p.fraction_bits for name, p in params.items()}
    groups = [*components(plan, "lowest"), *components(plan, "merged")]
    solved, moved = satisfy(
        nodes, bits, groups, target.limits, prefer_lowering=target.calibrate_arithmetic
    )
    for name, new in solved.items():
        if bits[name] != new:
            table = weights if name in weights else leaders
            table[name] = power_of_two_qparams(new, table[name].format)
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
            "aligned with tensors that must have the same scale",
            _cost(tensors[name], stats, own[name], aligned[name]),
        )
        for name in own
        if float(own[name].scale) != float(aligned[name].scale) and name in tensors
    ]


def _adjustment(moved: Adjusted, tensor: TensorPlan, stats: Stats) -> Adjustment:
    cost = None
    if tensor.role == "activation":
        before, after = (
            power_of_two_qparams(bits, tensor.integer.format)
            for bits in (moved.before, moved.after)
        )
        cost = _cost(tensor, stats, before, after)
    return Adjustment(moved.tensor, 2.0**-moved.before, 2.0**-moved.after, moved.why, cost)


def _cost(tensor: TensorPlan, stats: Stats, before: QParams, after: QParams) -> float | None:
    """Return how many decibels of its own SQNR a tensor loses."""
    if tensor.range is not None or stats[tensor.observe].counts is None:
        return None
    density = Density.of(stats[tensor.observe], tensor.name)
    errors = [error_of(density, params, tensor.integer) for params in (before, after)]
    if min(errors) <= 0:
        return None
    return decibels(errors[1], errors[0])
