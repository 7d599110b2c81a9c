"""Make the plan: rules choose schemes, operators place requests, the target fuses and shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import msgspec
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.presets import PRESETS
from lowbit.config.specs import (
    AccumulatorBias,
    IntegerSpec,
    TensorOverride,
)
from lowbit.errors import ConfigError, PlanError, did_you_mean
from lowbit.graph.editing import is_constant
from lowbit.graph.memory import garbage_collection_paused
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.ops.linear import linear_operator
from lowbit.ops.traits import OPERATORS, Operators, is_data_movement
from lowbit.planning.block_axes import block_axes
from lowbit.planning.caches import place_caches
from lowbit.planning.exact_inputs import drop_before_poles
from lowbit.planning.head import Head, find_head
from lowbit.planning.outputs import drop_final, find_final_scores, with_final_weight
from lowbit.planning.placement import drop_fused, place
from lowbit.planning.plan import BiasPlan, FloatNode, Plan, TensorPlan
from lowbit.planning.requests import Placement, Request
from lowbit.planning.rules import Scheme, choose_schemes
from lowbit.planning.saturation import within_pairs
from lowbit.planning.sharing import find_groups, find_leaders, find_observed
from lowbit.targets.target import Target

_FEW = 4


@garbage_collection_paused()
def make_plan(
    model: ir.Model,
    config: QuantConfig,
    target: Target,
    operators: Operators = OPERATORS,
    head: Head | None = None,
) -> Plan:
    """Decide the spec of every tensor of a normalized model; ``head`` is its own, if known."""
    _check_formats(config, target)
    graph = model.graph
    schemes = with_final_weight(choose_schemes(graph, config), config.final_weight, operators)
    schemes = _within_formats(schemes, target)
    schemes = _protect_head(schemes, graph, head or find_head(graph), config, operators)
    placement = place(graph, schemes, target, operators)
    drop_fused(graph, placement, target)
    drop_before_poles(graph, placement, operators)
    if target.float_outputs:
        drop_final(graph, placement, target, operators, {o.tensor for o in config.tensors})
    place_caches(placement, graph, config.cache)
    _override(placement, graph, config.overrides)
    axes = block_axes(graph, placement, target.block_axes)
    weights = within_pairs(_weights(placement), placement, graph, target)
    scores = find_final_scores(graph, placement, operators)
    activations = _activations(placement, graph, config, target)
    tensors = (*(_with_headroom(t, scores, config.final_headroom) for t in activations), *weights)
    tensors = tuple(_with_axis(tensor, axes) for tensor in tensors)
    return Plan(
        preset=config.name,
        target=target.name,
        rescaling=config.rescaling,
        tensors=tensors,
        biases=_biases(placement, schemes) if target.integer_bias else (),
        groups=find_groups(placement, graph, target),
        float_nodes=tuple(
            FloatNode(node=node.name or "", op_type=node.op_type, why=why)
            for node, why in placement.float_why.items()
        ),
    )


def _protect_head(
    schemes: Mapping[ir.Node, Scheme],
    graph: ir.Graph,
    head: Head,
    config: QuantConfig,
    operators: Operators,
) -> Mapping[ir.Node, Scheme]:
    """Keep a detection head in float, except where a rule spoke of the node."""
    if config.head == "int8" or (config.head == "auto" and not head.evidence):
        return schemes
    why = "after the last linear layers"
    if head.evidence:
        why = f"decodes detections: {head.evidence[0]}"
    # Data movement after a quantized tensor may follow it at no loss, so it is not excluded.
    names = set(head.nodes)
    protected = {n for n in graph if n.name in names and not is_data_movement(n, operators)}
    return {
        node: dataclasses.replace(scheme, excluded=why)
        if node in protected and scheme.priority == 0 and scheme.excluded is None
        else scheme
        for node, scheme in schemes.items()
    }


def _within_formats(schemes: Mapping[ir.Node, Scheme], target: Target) -> Mapping[ir.Node, Scheme]:
    """Leave in float what the target takes only in other formats than its scheme has."""
    special = {name for entry in target.formats for name in entry.operators}
    return {
        node: _within(scheme, name, target) if (name := operator_name(node)) in special else scheme
        for node, scheme in schemes.items()
    }


def _within(scheme: Scheme, operator: str, target: Target) -> Scheme:
    for spec, formats in zip(
        (scheme.activation, scheme.weight), target.formats_of(operator), strict=True
    ):
        if scheme.excluded is None and spec is not None and not target.takes(spec, formats):
            known = " or ".join(f.value for f in formats)
            why = f"{target.name} takes {operator} in {known}, not {spec.format_name}"
            return dataclasses.replace(scheme, excluded=why)
    return scheme


def _check_formats(config: QuantConfig, target: Target) -> None:
    wrong = _misfit(config, target)
    if wrong is None:
        return
    fitting = [name for name, preset in PRESETS.items() if _fits(preset.config, target)]
    way_out = f"; presets that fit it: {', '.join(fitting[:_FEW])}" if fitting else ""
    raise ConfigError(f"target {target.name} {wrong}{way_out}")


def _fits(config: QuantConfig, target: Target) -> bool:
    return config.activation is not None and _misfit(config, target) is None


def _misfit(config: QuantConfig, target: Target) -> str | None:
    """Return what a target needs that a configuration does not have, if there is anything."""
    roles = (
        ("activation", config.activation, target.activation_formats),
        ("weight", config.weight, target.weight_formats),
    )
    for role, spec, formats in roles:
        if spec is None:
            continue
        if role == "weight" and spec.is_dynamic:
            return "has fixed scales for weights: dynamic is for activations"
        if not target.takes(spec, formats):
            known = ", ".join(target.words_of(formats))
            return f"takes {role}s as {known}, not {spec.format_name}"
        integer = spec if isinstance(spec, IntegerSpec) else None
        if target.power_of_two and not (integer and integer.power_of_two):
            return f"needs power-of-two scales for {role}s"
        if target.symmetric and integer and not integer.symmetric:
            return f"needs symmetric integers for {role}s, with zero points of zero"
        fine = integer and (integer.per_channel or integer.group_size is not None)
        if fine and not target.per_channel:
            return "has no per-channel scales"
    return None


def _override(placement: Placement, graph: ir.Graph, overrides: tuple[TensorOverride, ...]) -> None:
    known = {**placement.activations, **placement.weights}
    for override in overrides:
        if override.tensor not in known and override.optional:
            continue
        if override.tensor not in known:
            values = [tensor_name(v) for node in graph for v in node.outputs]
            raise PlanError(
                f"no quantized tensor is called {override.tensor!r}"
                f"{did_you_mean(override.tensor, [*known, *values])}"
            )
        requests = (
            placement.activations if override.tensor in placement.activations else placement.weights
        )
        if override.keep == "float":
            del requests[override.tensor]
        elif override.spec is not None:
            requests[override.tensor] = Request(override.spec, 1 << 30, "asked for by name")


def _activations(
    placement: Placement, graph: ir.Graph, config: QuantConfig, target: Target
) -> tuple[TensorPlan, ...]:
    leader = find_leaders(placement, graph, target)
    observed = find_observed(placement, graph)
    instead = _observed_instead(graph, config.tensors)
    fixed = {o.tensor: o.range for o in config.overrides if o.range is not None}
    if target.softmax_range is not None:
        for node in placement.active:
            if node.op_type == "Softmax":
                fixed.setdefault(tensor_name(node.outputs[0]), target.softmax_range)
    rows = []
    for name in _graph_order(graph, placement.activations):
        request = placement.activations[name]
        why = request.why
        if leader[name] != name:
            why += f"; same numbers as {leader[name]}"
        elif name in observed:
            why += "; its only consumer clips it"
        if name in instead:
            why += f"; with the range of {instead[name]}"
        rows.append(
            TensorPlan(
                name=name,
                role="activation",
                spec=request.spec,
                leader=leader[name],
                observe=instead.get(name, observed.get(name, name)),
                range=fixed.get(name),
                consumers=request.consumers,
                why=why,
            )
        )
    return tuple(rows)


def _observed_instead(graph: ir.Graph, overrides: tuple[TensorOverride, ...]) -> dict[str, str]:
    """Return, for tensors that are given the range of another, the other one, if it is computed."""
    computed = {tensor_name(v) for v in graph.inputs}
    computed.update(tensor_name(v) for node in graph for v in node.outputs)
    return {o.tensor: o.observe for o in overrides if o.observe in computed and o.observe}


def _with_axis(tensor: TensorPlan, axes: Mapping[str, int]) -> TensorPlan:
    if tensor.name not in axes:
        return tensor
    return msgspec.structs.replace(tensor, axis=axes[tensor.name])


def _with_headroom(
    tensor: TensorPlan, scores: Collection[str], headroom: float | None
) -> TensorPlan:
    if headroom is None or tensor.name not in scores or not tensor.is_calibrated:
        return tensor
    why = f"{tensor.why}; holds all scores observed"
    return msgspec.structs.replace(tensor, headroom=headroom, why=why)


def _graph_order(graph: ir.Graph, names: Mapping[str, Request]) -> list[str]:
    values = [*graph.inputs, *(v for node in graph for v in node.outputs)]
    return [v.name for v in values if v.name in names and v.name is not None]


def _weights(placement: Placement) -> tuple[TensorPlan, ...]:
    return tuple(
        TensorPlan(
            name=name,
            role="weight",
            spec=request.spec,
            axis=placement.channel_axis.get(name),
            leader=name,
            observe=name,
            why=request.why,
        )
        for name, request in placement.weights.items()
    )


def _biases(placement: Placement, schemes: Mapping[ir.Node, Scheme]) -> tuple[BiasPlan, ...]:
    rows = []
    for node, traits in placement.active.items():
        spec = schemes[node].bias
        if traits.bias is None or len(node.inputs) <= traits.bias:
            continue
        if not isinstance(spec, (AccumulatorBias, IntegerSpec)):
            continue  # placed with the other constants, or kept in float
        source, bias = node.inputs[0], node.inputs[traits.bias]
        weight = node.inputs[traits.weight or 0]
        if source is None or weight is None or bias is None or not is_constant(bias):
            continue
        if spec.is_accumulator and not (
            _is_integer(placement.activations, source) and _is_integer(placement.weights, weight)
        ):
            continue
        row = linear_operator(node)
        rows.append(
            BiasPlan(
                node=node.name or "",
                tensor=tensor_name(bias),
                index=traits.bias,
                spec=spec,
                input=tensor_name(source),
                weight=tensor_name(weight),
                factor=row.bias_factor(node) if row is not None else 1.0,
                repeats=row.bias_repeats(node) if row is not None else 1,
                channel_axis=row.output_axis if row is not None else 1,
                why=f"bias of {node.op_type} {node.name}",
            )
        )
    return tuple(rows)


def _is_integer(requests: Mapping[str, Request], value: ir.Value) -> bool:
    """Whether a value becomes integers of scales that a bias can have as well."""
    request = requests.get(tensor_name(value))
    return (
        request is not None
        and isinstance(request.spec, IntegerSpec)
        and request.spec.group_size is None
    )
