"""Where Q/DQ goes: which tensors the operators of a graph want quantized.

Works on a draft that later steps (fusing, sharing) narrow down. Nothing here sees data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.config.specs import BfpSpec, FloatSpec, IntegerSpec, MxSpec, Spec
from lowbit.graph.editing import ARITHMETIC, REQUANTIZED, constant, is_constant
from lowbit.graph.naming import tensor_name
from lowbit.ops.traits import Kind, OpTraits, clip_bounds, moves_exactly, traits_of
from lowbit.planning.rules import Scheme
from lowbit.targets.target import FusedPair, Target

# They read what tensors look like, not their numbers.
_NO_NUMBERS = ("Shape", "Size")


@dataclasses.dataclass(slots=True)
class Wish:
    """What the operators around one activation want for it."""

    spec: Spec
    priority: int
    why: str


@dataclasses.dataclass(slots=True)
class Draft:
    """The wishes collected so far, in the order they were made."""

    activations: dict[str, Wish] = dataclasses.field(default_factory=dict)
    weights: dict[str, Wish] = dataclasses.field(default_factory=dict)
    channel_axis: dict[str, int] = dataclasses.field(default_factory=dict)
    active: dict[ir.Node, OpTraits] = dataclasses.field(default_factory=dict)
    float_why: dict[ir.Node, str] = dataclasses.field(default_factory=dict)

    def want(self, value: ir.Value, scheme: Scheme, why: str) -> None:
        """Ask for an activation to be quantized; a later rule overrides an earlier one."""
        name, spec = tensor_name(value), scheme.activation
        if spec is None or _is_lone(value, spec):
            return
        known = self.activations.get(name)
        if known is None or scheme.priority > known.priority:
            self.activations[name] = Wish(spec, scheme.priority, why)


def _is_lone(value: ir.Value, spec: Spec) -> bool:
    """Whether this is a single number, of which no block can be made."""
    is_block = isinstance(spec, (BfpSpec, MxSpec))
    return is_block and value.shape is not None and value.shape.rank() == 0


def place(graph: ir.Graph, schemes: Mapping[ir.Node, Scheme], target: Target) -> Draft:
    """Return what every operator of the graph wants quantized, before fusing and sharing."""
    draft = Draft()
    shapes = _shape_values(graph)
    waiting: list[tuple[ir.Node, OpTraits]] = []
    for node in graph:
        if node.meta.get(REQUANTIZED) and node.outputs[0].is_graph_output():
            draft.want(node.outputs[0], schemes[node], "output of the graph")
        if node.meta.get(ARITHMETIC) or node.meta.get(REQUANTIZED) or not _touches_floats(node):
            continue
        traits = _traits(node, target)
        reason = _stays_float(node, traits, schemes[node], target, shapes)
        if reason is not None or traits is None:
            draft.float_why[node] = reason or "no rule for this operator"
        elif _waits(traits, target):
            waiting.append((node, traits))
        else:
            _place_node(draft, node, traits, schemes[node], behind=target.movers == "behind")
    _follow(draft, waiting, schemes)
    return draft


def drop_fused(graph: ir.Graph, draft: Draft, target: Target) -> None:
    """Take back the wishes for tensors inside a pair the target fuses. Changes ``draft``."""
    for node in graph:
        value = effective_output(node)
        consumer = only_consumer(value)
        if consumer is None or value.name not in draft.activations:
            continue
        if any(_fuses(pair, node, consumer) for pair in target.fuse):
            del draft.activations[tensor_name(value)]


def effective_output(node: ir.Node) -> ir.Value:
    """Return what the node writes, a device's own arithmetic behind it included."""
    value = node.outputs[0]
    consumer = only_consumer(value)
    while consumer is not None and consumer.meta.get(ARITHMETIC):
        value = consumer.outputs[0]
        consumer = only_consumer(value)
    return value


def only_consumer(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads ``value``, if nothing else does."""
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def _traits(node: ir.Node, target: Target) -> OpTraits | None:
    traits = traits_of(node)
    if traits is None and target.every_operator and node.op_type not in _NO_NUMBERS:
        subgraphs = any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values())
        return None if subgraphs else OpTraits()
    return traits


def _waits(traits: OpTraits, target: Target) -> bool:
    """Whether the node is quantized only next to something that is."""
    return target.movers == "follow" and traits.kind in (Kind.MOVES, Kind.JOINS)


def _follow(
    draft: Draft,
    waiting: list[tuple[ir.Node, OpTraits]],
    schemes: Mapping[ir.Node, Scheme],
) -> None:
    """Quantize data movement that has a quantized neighbour, until no more is found."""
    while True:
        near = [(n, t) for n, t in waiting if _has_quantized_neighbour(draft, n, t)]
        if not near:
            break
        for node, traits in near:
            _place_node(draft, node, traits, schemes[node])
        waiting = [pair for pair in waiting if pair not in near]
    for node, _ in waiting:
        draft.float_why[node] = "moves data between float operators"


def _has_quantized_neighbour(draft: Draft, node: ir.Node, traits: OpTraits) -> bool:
    around = [*data_inputs(node, traits), *data_outputs(node, traits)]
    return any(value.name in draft.activations for value in around)


def data_inputs(node: ir.Node, traits: OpTraits) -> list[ir.Value]:
    """Return the float inputs that carry data, constants included."""
    indices = range(len(node.inputs)) if traits.data is None else traits.data
    values = [node.inputs[i] for i in indices if i < len(node.inputs)]
    return [v for v in values if v is not None and v.dtype == ir.DataType.FLOAT]


def data_outputs(node: ir.Node, traits: OpTraits) -> list[ir.Value]:
    """Return the float outputs that are quantized, device arithmetic included."""
    outputs = [effective_output(node), *node.outputs[1:]][: traits.outputs]
    used = [v for v in outputs if v.uses() or v.is_graph_output()]
    return [v for v in used if v.dtype == ir.DataType.FLOAT]


def _place_node(
    draft: Draft, node: ir.Node, traits: OpTraits, scheme: Scheme, *, behind: bool = False
) -> None:
    inputs = data_inputs(node, traits)
    waits = traits.kind is Kind.CLAMPS or (behind and traits.kind is Kind.MOVES)
    if waits and inputs and inputs[0].name not in draft.activations:
        draft.float_why[node] = "its input is not quantized"
        return
    draft.active[node] = traits
    for value in inputs:
        if not is_constant(value):
            draft.want(value, scheme, f"input of {node.op_type} {node.name}")
    for value in data_outputs(node, traits):
        draft.want(value, scheme, f"output of {node.op_type} {node.name}")
    _place_constants(draft, node, traits, scheme, inputs)
    _place_bias(draft, node, traits, scheme)


def _place_constants(
    draft: Draft, node: ir.Node, traits: OpTraits, scheme: Scheme, inputs: list[ir.Value]
) -> None:
    if scheme.weight is None:
        return
    weight = _input(node, traits.weight)
    extra = [_input(node, index) for index in traits.constants]
    for value in [*inputs, weight, *extra]:
        if value is None or not is_constant(value) or value.dtype != ir.DataType.FLOAT:
            continue
        name = tensor_name(value)
        if name in draft.weights:
            continue
        spec = scheme.weight
        if value is not weight and value in inputs:
            spec = _beside_activations(scheme, spec)
        if _is_lone(value, spec):
            continue
        spec, axis = _granularity(node, traits, value, spec)
        role = "weight" if value is weight else "constant"
        draft.weights[name] = Wish(spec, scheme.priority, f"{role} of {node.op_type} {node.name}")
        if axis is not None:
            draft.channel_axis[name] = axis


def _granularity(
    node: ir.Node, traits: OpTraits, value: ir.Value, spec: Spec
) -> tuple[Spec, int | None]:
    """Return the spec of a constant, and the axis its scales lie along if it has several.

    Groups are for MatMul and Gemm; the weights of other layers, and those of no more inputs than
    a group has, get a scale a channel instead.
    """
    if not isinstance(spec, IntegerSpec):
        return spec, None
    is_weight = value is _input(node, traits.weight)
    shape = value.shape.numpy() if value.shape is not None else ()
    if spec.group is not None:
        axis = _summed_axis(node)
        if is_weight and axis is not None and len(shape) > 1 and shape[axis] > spec.group:
            return spec, axis % len(shape)
        spec = msgspec.structs.replace(spec, group=None, per_channel=True)
    if is_weight and spec.per_channel and len(shape) > 1:
        return spec, traits.channel_axis(node) % len(shape)
    return spec, None


def _summed_axis(node: ir.Node) -> int | None:
    """Return the axis of a matrix of weights that inputs lie along."""
    if node.op_type == "MatMul":
        return -2
    if node.op_type == "Gemm":
        return 1 if node.attributes.get_int("transB", 0) else 0
    return None


def _place_bias(draft: Draft, node: ir.Node, traits: OpTraits, scheme: Scheme) -> None:
    """Place a bias that is no integer: those depend on scales and are planned by themselves."""
    value = _input(node, traits.bias)
    spec = scheme.bias
    if (
        value is None
        or not is_constant(value)
        or not isinstance(spec, (FloatSpec, BfpSpec, MxSpec))
    ):
        return
    why = f"bias of {node.op_type} {node.name}"
    draft.weights.setdefault(tensor_name(value), Wish(spec, scheme.priority, why))


def _beside_activations(scheme: Scheme, weight: Spec) -> Spec:
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
    if traits is None or not (target.every_operator or node.op_type in target.operators):
        return f"{target.name} does not run {node.op_type} quantized"
    if not traits.applies(node):
        return f"{node.op_type} with these attributes is not quantized"
    if node.op_type == "Resize" and not moves_exactly(node) and "Resize" in target.shares:
        return None
    if any(_is_infinite(v) for v in node.inputs):
        return "one of its constants is infinite"
    return None


def _is_infinite(value: ir.Value | None) -> bool:
    if value is None or not is_constant(value) or value.dtype != ir.DataType.FLOAT:
        return False
    data = constant(value)
    return data is not None and data.size <= 1 << 16 and bool(np.isinf(data).any())


def _touches_floats(node: ir.Node) -> bool:
    values = [*node.inputs, *node.outputs]
    return any(
        v is not None and v.dtype == ir.DataType.FLOAT and not is_constant(v) for v in values
    )


def _shape_values(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that follow from shapes and constants alone."""
    found: set[ir.Value] = set()
    for node in graph:
        if node.op_type in ("Shape", "Size"):
            found.update(node.outputs)
            continue
        moving = [v for v in node.inputs if v is not None and not is_constant(v)]
        if moving and all(v in found for v in moving):
            found.update(node.outputs)
    return found


def _fuses(pair: FusedPair, producer: ir.Node, consumer: ir.Node) -> bool:
    if producer.op_type not in pair.producers or consumer.op_type not in pair.consumers:
        return False
    if consumer.op_type != "Clip" or pair.clips is None:
        return True
    low, high = clip_bounds(consumer)
    return any(low == a and high == b for a, b in pair.clips)
