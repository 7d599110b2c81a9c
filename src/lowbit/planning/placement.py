"""Where Q/DQ goes: which tensors the operators of a graph request quantized.

Works on a placement that later steps (fusing, sharing) narrow down. Nothing here sees data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.config.specs import IntegerSpec, Spec
from lowbit.graph.editing import (
    ARITHMETIC,
    REQUANTIZED,
    SATURATED,
    constant,
    constant_shape,
    is_constant,
    is_float_tensor,
    node_inputs,
    only_consumer,
)
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.ops.families import READ_SHAPES
from lowbit.ops.linear import linear_operator
from lowbit.ops.traits import (
    OPERATORS,
    Kind,
    Operators,
    OpTraits,
    clip_bounds,
    traits_of,
)
from lowbit.ops.weights import weight_inputs
from lowbit.planning.blocks import find_float_parts
from lowbit.planning.exact_inputs import drop_before_decisions, find_decisions
from lowbit.planning.requests import Placement, Request, is_lone
from lowbit.planning.rules import Scheme
from lowbit.planning.weights_only import is_weight_only, place_dequantized, place_weights
from lowbit.targets.target import FusedPair, Target

# Trees and the like compare numbers with thresholds, which rounding crosses.
_CLASSICAL = "ai.onnx.ml"


def place(
    graph: ir.Graph,
    schemes: Mapping[ir.Node, Scheme],
    target: Target,
    operators: Operators = OPERATORS,
) -> Placement:
    """Return what every operator of the graph requests, before fusing and sharing."""
    placement = Placement(parts=find_float_parts(graph, target.float_parts))
    shapes = _shape_values(graph)
    decisions = find_decisions(graph, operators)
    waiting: list[tuple[ir.Node, OpTraits]] = []
    for node in graph:
        if node.meta.get(REQUANTIZED) and node.outputs[0].is_graph_output():
            placement.request(node.outputs[0], schemes[node], node, "output")
        if node.meta.get(ARITHMETIC) or node.meta.get(REQUANTIZED):
            continue
        alone = is_weight_only(schemes[node])
        # The types between custom operators are not known without a sample, those of weights are.
        weights = weight_inputs(node, operators) if alone else ()
        if not weights and not _touches_floats(node):
            continue
        if alone and schemes[node].excluded is None:
            place_weights(placement, node, schemes[node], target, weights, operators)
            continue
        traits = _traits(node, target, operators)
        reason = _stays_float(node, traits, schemes[node], target, shapes)
        if schemes[node].priority == 0:  # where a rule speaks of the node, that holds
            reason = reason or placement.parts.nodes.get(node) or decisions.reason(node)
        if place_dequantized(placement, node, schemes[node], target):
            placement.float_why[node] = "it computes in float, with integer weights"
        elif reason is not None or traits is None:
            placement.float_why[node] = reason or "no rule for this operator"
        elif _is_conditional(traits, target):
            waiting.append((node, traits))
        else:
            _place_node(placement, node, traits, schemes[node], target)
    _place_next_to_quantized(placement, waiting, schemes, target)
    drop_before_decisions(graph, placement, decisions)
    return placement


def drop_fused(graph: ir.Graph, placement: Placement, target: Target) -> None:
    """Take back the requests for tensors inside a pair the target fuses. Changes ``placement``."""
    for node in graph:
        value = effective_output(node)
        consumer = only_consumer(value)
        if consumer is None or value.name not in placement.activations:
            continue
        if any(_fuses(pair, node, consumer) for pair in target.fuse):
            del placement.activations[tensor_name(value)]


def effective_output(node: ir.Node) -> ir.Value:
    """Return what the node writes, a device's own arithmetic after it included."""
    value = node.outputs[0]
    consumer = only_consumer(value)
    while consumer is not None and consumer.meta.get(ARITHMETIC):
        value = consumer.outputs[0]
        consumer = only_consumer(value)
    return value


def _traits(node: ir.Node, target: Target, operators: Operators) -> OpTraits | None:
    traits = traits_of(node, operators)
    if traits is None and target.every_operator and node.op_type not in READ_SHAPES:
        subgraphs = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
        return None if subgraphs or node.domain == _CLASSICAL else OpTraits()
    return traits


def _is_conditional(traits: OpTraits, target: Target) -> bool:
    """Whether the node is quantized only next to something that is."""
    next_to_quantized = target.data_movement == "beside_quantized"
    return next_to_quantized and traits.kind in (Kind.MOVES, Kind.CONCATENATES)


def _place_next_to_quantized(
    placement: Placement,
    waiting: list[tuple[ir.Node, OpTraits]],
    schemes: Mapping[ir.Node, Scheme],
    target: Target,
) -> None:
    """Quantize data movement that has a quantized neighbour, until no more is found."""
    while True:
        near = [(n, t) for n, t in waiting if _has_quantized_neighbour(placement, n, t)]
        if not near:
            break
        for node, traits in near:
            _place_node(placement, node, traits, schemes[node], target)
        waiting = [pair for pair in waiting if pair not in near]
    for node, _ in waiting:
        placement.float_why[node] = "moves data between float operators"


def _has_quantized_neighbour(placement: Placement, node: ir.Node, traits: OpTraits) -> bool:
    around = [*data_inputs(node, traits), *data_outputs(node, traits)]
    return any(value.name in placement.activations for value in around)


def data_inputs(node: ir.Node, traits: OpTraits) -> list[ir.Value]:
    """Return the float inputs that carry data, constants included."""
    indices = range(len(node.inputs)) if traits.data is None else traits.data
    values = [node.inputs[i] for i in indices if i < len(node.inputs)]
    return [v for v in values if v is not None and is_float_tensor(v)]


def data_outputs(node: ir.Node, traits: OpTraits) -> list[ir.Value]:
    """Return the float outputs that are quantized, device arithmetic included."""
    outputs = [effective_output(node), *node.outputs[1:]][: traits.outputs]
    used = [v for v in outputs if v.uses() or v.is_graph_output()]
    return [v for v in used if is_float_tensor(v)]


def _place_node(
    placement: Placement, node: ir.Node, traits: OpTraits, scheme: Scheme, target: Target
) -> None:
    inputs = data_inputs(node, traits)
    after = target.data_movement == "after_quantized"
    waits = traits.kind is Kind.CLAMPS or (after and traits.kind is Kind.MOVES)
    if waits and inputs and not _is_requested(placement, inputs[0]):
        placement.float_why[node] = "its input is not quantized"
        return
    placement.active[node] = traits
    for value in inputs:
        if not is_constant(value):
            placement.request(value, scheme, node, "input")
    for value in data_outputs(node, traits):
        placement.request(value, scheme, node, "output")
    _place_constants(placement, node, traits, scheme, target)
    _place_bias(placement, node, traits, scheme)


def _is_requested(placement: Placement, value: ir.Value) -> bool:
    """Whether a tensor is quantized, under the name it has before a requantization pair if need be."""
    producer = value.producer()
    if producer is not None and producer.meta.get(REQUANTIZED):
        value = producer.inputs[0] or value
    return value.name in placement.activations


def _place_constants(
    placement: Placement, node: ir.Node, traits: OpTraits, scheme: Scheme, target: Target
) -> None:
    inputs = data_inputs(node, traits)
    if scheme.weight is None:
        return
    weight = _input(node, traits.weight)
    # What is written in float is scaled in float, where a scale per channel costs nothing.
    free = target.per_channel and all(v in placement.parts.tensors for v in node.outputs)
    extra = [_input(node, index) for index in traits.constants]
    for value in [*inputs, weight, *extra]:
        if value is None or not is_constant(value) or value.dtype != ir.DataType.FLOAT:
            continue
        name = tensor_name(value)
        if name in placement.weights or 0 in (constant_shape(value) or ()):
            continue
        spec = scheme.weight
        if value is not weight and value in inputs:
            spec = _at_least_activation_bits(scheme, spec)
        if is_lone(value, spec):
            continue
        if value is weight and free and scheme.priority == 0:
            spec = spec.with_scales_per_channel()
        spec, axis = _granularity(node, traits, value, spec)
        role = "weight" if value is weight else "constant"
        placement.weights[name] = Request(
            spec, scheme.priority, f"{role} of {node.op_type} {node.name}"
        )
        if axis is not None:
            placement.channel_axis[name] = axis


def _granularity(
    node: ir.Node, traits: OpTraits, value: ir.Value, spec: Spec
) -> tuple[Spec, int | None]:
    """Return the spec of a constant, and the axis its scales lie along if it has several.

    Scales per group are for matrices; the weights of other layers, and those of no more inputs than
    a group has, get a scale per channel instead.
    """
    shape = value.shape.numpy() if value.shape is not None else ()
    if value is not _input(node, traits.weight) or len(shape) < 2:
        return spec.along(shape, reduced=None, channel=None)
    row = linear_operator(node)
    return spec.along(
        shape,
        reduced=row.reduced_axis(node) if row is not None and row.is_matrix else None,
        channel=None if _is_stack(node, shape) else traits.channel_axis(node),
    )


def _is_stack(node: ir.Node, shape: Sequence[int]) -> bool:
    """Whether weights are several matrices: integer kernels take one scale for all of them."""
    row = linear_operator(node)
    return row is not None and row.is_matrix and len(shape) > 2


def _place_bias(placement: Placement, node: ir.Node, traits: OpTraits, scheme: Scheme) -> None:
    """Place a bias that is no integer: those depend on scales and are planned by themselves."""
    value = _input(node, traits.bias)
    spec = scheme.bias
    if value is None or not is_constant(value) or spec is None or spec.is_integer:
        return
    why = f"bias of {node.op_type} {node.name}"
    request = Request(spec, scheme.priority, why)  # type: ignore[arg-type]  # no bias in integers
    placement.weights.setdefault(tensor_name(value), request)


def _at_least_activation_bits(scheme: Scheme, weight: Spec) -> Spec:
    """Return the spec of a constant that meets activations: theirs, if they have more bits."""
    spec = scheme.activation
    if not isinstance(spec, IntegerSpec) or not isinstance(weight, IntegerSpec):
        return weight
    if spec.format.bits <= weight.format.bits:
        return weight
    return IntegerSpec(format=spec.format, symmetric=spec.symmetric, power_of_two=spec.power_of_two)


def _input(node: ir.Node, index: int | None) -> ir.Value | None:
    return node.inputs[index] if index is not None and index < len(node.inputs) else None


def _stays_float(
    node: ir.Node,
    traits: OpTraits | None,
    scheme: Scheme,
    target: Target,
    shapes: set[ir.Value],
) -> str | None:
    """Return why a node is not quantized, or ``None`` if it is."""
    if scheme.excluded is not None:
        return scheme.excluded
    if any(v in shapes for v in node.outputs):
        return "computes a shape"
    if traits is None or not (target.every_operator or operator_name(node) in target.operators):
        return f"{target.name} does not run {node.op_type} quantized"
    if not traits.applies(node):
        return f"{node.op_type} with these attributes is not quantized"
    if traits.weight is not None and _is_empty(node.inputs[traits.weight]):
        return "its weight is empty"
    # A mask has infinite values by intent, weights have them by mistake.
    if linear_operator(node) is None and any(_is_infinite(v) for v in node.inputs):
        return "one of its constants is infinite, or as large as a mask"
    return None


# float32's lowest number stands for minus infinity in masks, and a scale for it leaves nothing else.
_AS_GOOD_AS_INFINITE = 1e30


def _is_infinite(value: ir.Value | None) -> bool:
    if value is None or not is_constant(value) or value.dtype != ir.DataType.FLOAT:
        return False
    data = constant(value)
    if data is None or data.size > 1 << 16:
        return False
    return bool((np.abs(data) >= _AS_GOOD_AS_INFINITE).any())


def _is_empty(value: ir.Value | None) -> bool:
    return 0 in (constant_shape(value) or ())


def _touches_floats(node: ir.Node) -> bool:
    values = [*node.inputs, *node.outputs]
    return any(v is not None and is_float_tensor(v) and not is_constant(v) for v in values)


def _shape_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that follow from shapes and constants alone."""
    found: set[ir.Value] = set()
    for node in graph:
        if node.op_type in READ_SHAPES:
            found.update(node.outputs)
            continue
        moving = [v for v in node_inputs(node) if not is_constant(v)]
        if moving and all(v in found for v in moving):
            found.update(node.outputs)
    return found


def _fuses(pair: FusedPair, producer: ir.Node, consumer: ir.Node) -> bool:
    if operator_name(producer) not in pair.producers:
        return False
    if operator_name(consumer) not in pair.consumers:
        return False
    if consumer.op_type != "Clip" or pair.clips is None or consumer.meta.get(SATURATED):
        return True
    low, high = clip_bounds(consumer)
    return any(low == a and high == b for a, b in pair.clips)
