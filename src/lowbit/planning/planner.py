"""Make the plan: rules choose schemes, operators place wishes, the target fuses and shares."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.specs import (
    FloatSpec,
    IntegerSpec,
    ProductBias,
    Spec,
    TensorOverride,
    describe_format,
)
from lowbit.errors import ConfigError, PlanError, did_you_mean
from lowbit.graph.editing import is_constant
from lowbit.graph.memory import garbage_collection_paused
from lowbit.graph.naming import tensor_name
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.traits import Kind, traits_of
from lowbit.planning.block_axes import block_axes
from lowbit.planning.head import find_head
from lowbit.planning.placement import Draft, Wish, drop_fused, place
from lowbit.planning.plan import BiasPlan, FloatNode, Plan, TensorPlan
from lowbit.planning.rules import Scheme, choose_schemes
from lowbit.planning.sharing import find_groups, find_leaders, find_observed
from lowbit.targets.target import Target


@garbage_collection_paused()
def make_plan(model: ir.Model, config: QuantConfig, target: Target) -> Plan:
    """Decide the spec of every tensor of a normalized model."""
    _check_formats(config, target)
    graph = model.graph
    schemes = _within_formats(choose_schemes(graph, config), target)
    schemes = _protect_head(schemes, graph, config)
    draft = place(graph, schemes, target)
    drop_fused(graph, draft, target)
    _override(draft, graph, config.tensors)
    axes = block_axes(graph, draft, target.block_axes)
    tensors = (*_activations(draft, graph, config, target), *_weights(draft))
    tensors = tuple(_with_axis(tensor, axes) for tensor in tensors)
    return Plan(
        preset=config.name,
        target=target.name,
        tensors=tensors,
        biases=_biases(draft, schemes),
        groups=find_groups(draft, graph, target),
        float_nodes=tuple(
            FloatNode(node=node.name or "", op_type=node.op_type, why=why)
            for node, why in draft.float_why.items()
        ),
    )


def _protect_head(
    schemes: Mapping[ir.Node, Scheme], graph: ir.Graph, config: QuantConfig
) -> Mapping[ir.Node, Scheme]:
    """Keep a detection head in float, except where a rule spoke of the node."""
    head = find_head(graph)
    if config.head == "int8" or (config.head == "auto" and not head.evidence):
        return schemes
    why = "behind the last learned layers"
    if head.evidence:
        why = f"decodes detections: {head.evidence[0]}"
    # Data movement behind a quantized tensor may follow it at no loss, so it is not held back.
    names = set(head.nodes)
    protected = {n for n in graph if n.name in names and not _moves(n)}
    return {
        node: dataclasses.replace(scheme, excluded=why)
        if node in protected and scheme.priority == 0 and scheme.excluded is None
        else scheme
        for node, scheme in schemes.items()
    }


def _within_formats(schemes: Mapping[ir.Node, Scheme], target: Target) -> Mapping[ir.Node, Scheme]:
    """Leave in float what the target takes only in other formats than its scheme has."""
    special = {op_type for entry in target.formats for op_type in entry.operators}
    return {
        node: _within(scheme, node.op_type, target) if node.op_type in special else scheme
        for node, scheme in schemes.items()
    }


def _within(scheme: Scheme, op_type: str, target: Target) -> Scheme:
    for spec, formats in zip(
        (scheme.activation, scheme.weight), target.formats_of(op_type), strict=True
    ):
        if scheme.excluded is None and spec is not None and not _takes(target, spec, formats):
            known = " or ".join(f.value for f in formats)
            why = f"{target.name} takes {op_type} in {known}, not {describe_format(spec)}"
            return dataclasses.replace(scheme, excluded=why)
    return scheme


def _moves(node: ir.Node) -> bool:
    traits = traits_of(node)
    return traits is not None and traits.kind is Kind.MOVES


def _check_formats(config: QuantConfig, target: Target) -> None:
    roles = (
        ("activation", config.activation, target.activation_formats),
        ("weight", config.weight, target.weight_formats),
    )
    for role, spec, formats in roles:
        if spec is None:
            continue
        if not _takes(target, spec, formats):
            known = [f.value for f in (*formats, *target.float_formats)]
            known += ["blocks"] if target.blocks else []
            raise ConfigError(
                f"target {target.name} takes {role}s as {', '.join(known)}, "
                f"not {describe_format(spec)}"
            )
        if target.power_of_two and not (isinstance(spec, IntegerSpec) and spec.power_of_two):
            raise ConfigError(f"target {target.name} needs power-of-two scales for {role}s")
        fine = isinstance(spec, IntegerSpec) and (spec.per_channel or spec.group is not None)
        if fine and not target.per_channel:
            raise ConfigError(f"target {target.name} has no per-channel scales")


def _takes(target: Target, spec: Spec, formats: tuple[IntegerFormat, ...]) -> bool:
    if isinstance(spec, IntegerSpec):
        return spec.format in formats
    if isinstance(spec, FloatSpec):
        return spec.format in target.float_formats
    return target.blocks


def _override(draft: Draft, graph: ir.Graph, overrides: tuple[TensorOverride, ...]) -> None:
    known = {**draft.activations, **draft.weights}
    for override in overrides:
        if override.tensor not in known and override.optional:
            continue
        if override.tensor not in known:
            values = [tensor_name(v) for node in graph for v in node.outputs]
            raise PlanError(
                f"no quantized tensor is called {override.tensor!r}"
                f"{did_you_mean(override.tensor, [*known, *values])}"
            )
        place_of = draft.activations if override.tensor in draft.activations else draft.weights
        if override.keep == "float":
            del place_of[override.tensor]
        elif override.spec is not None:
            place_of[override.tensor] = Wish(override.spec, 1 << 30, "asked for by name")


def _activations(
    draft: Draft, graph: ir.Graph, config: QuantConfig, target: Target
) -> tuple[TensorPlan, ...]:
    leader = find_leaders(draft, graph, target)
    observed = find_observed(draft, graph)
    fixed = {o.tensor: o.range for o in config.tensors if o.range is not None}
    if target.softmax_range is not None:
        for node in draft.active:
            if node.op_type == "Softmax":
                fixed.setdefault(tensor_name(node.outputs[0]), target.softmax_range)
    rows = []
    for name in _graph_order(graph, draft.activations):
        wish = draft.activations[name]
        why = wish.why
        if leader[name] != name:
            why += f"; same numbers as {leader[name]}"
        elif name in observed:
            why += "; its only reader clips it"
        rows.append(
            TensorPlan(
                name=name,
                role="activation",
                spec=wish.spec,
                leader=leader[name],
                observe=observed.get(name, name),
                range=fixed.get(name),
                why=why,
            )
        )
    return tuple(rows)


def _with_axis(tensor: TensorPlan, axes: Mapping[str, int]) -> TensorPlan:
    if tensor.name not in axes:
        return tensor
    return msgspec.structs.replace(tensor, axis=axes[tensor.name])


def _graph_order(graph: ir.Graph, names: Mapping[str, Wish]) -> list[str]:
    values = [*graph.inputs, *(v for node in graph for v in node.outputs)]
    return [v.name for v in values if v.name in names and v.name is not None]


def _weights(draft: Draft) -> tuple[TensorPlan, ...]:
    return tuple(
        TensorPlan(
            name=name,
            role="weight",
            spec=wish.spec,
            axis=draft.channel_axis.get(name),
            leader=name,
            observe=name,
            why=wish.why,
        )
        for name, wish in draft.weights.items()
    )


def _biases(draft: Draft, schemes: Mapping[ir.Node, Scheme]) -> tuple[BiasPlan, ...]:
    rows = []
    for node, traits in draft.active.items():
        spec = schemes[node].bias
        if traits.bias is None or len(node.inputs) <= traits.bias:
            continue
        if not isinstance(spec, (ProductBias, IntegerSpec)):
            continue  # placed with the other constants, or left in float
        source, bias = node.inputs[0], node.inputs[traits.bias]
        weight = node.inputs[traits.weight or 0]
        if source is None or weight is None or bias is None or not is_constant(bias):
            continue
        if isinstance(spec, ProductBias) and not (
            _is_integer(draft.activations, source) and _is_integer(draft.weights, weight)
        ):
            continue
        rows.append(
            BiasPlan(
                node=node.name or "",
                tensor=tensor_name(bias),
                index=traits.bias,
                spec=spec,
                input=tensor_name(source),
                weight=tensor_name(weight),
                factor=node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0,
                group=_bias_repeats(node),
                channel_axis=-1 if node.op_type == "Gemm" else 1,
                why=f"bias of {node.op_type} {node.name}",
            )
        )
    return tuple(rows)


def _is_integer(wishes: Mapping[str, Wish], value: ir.Value) -> bool:
    """Whether a value becomes integers of scales that a bias can have as well."""
    wish = wishes.get(tensor_name(value))
    return wish is not None and isinstance(wish.spec, IntegerSpec) and wish.spec.group is None


def _bias_repeats(node: ir.Node) -> int:
    """How often a per-channel weight scale is repeated along the bias."""
    return node.attributes.get_int("group", 1) if node.op_type == "ConvTranspose" else 1
