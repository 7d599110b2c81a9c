"""Run the device's arithmetic next to the float one, both fed by the float network's layers.

Replacing a sigmoid by a hard sigmoid changes what the layers after it see, and theirs in turn. To
measure what each replacement does by itself, every linear layer here reads the *float* values,
while the replaced operators read the same layer outputs and are measured next to them. The mean
difference at a layer's input is then what that layer's bias has to make up for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from lowbit.graph.naming import tensor_name
from lowbit.graph.nesting import subgraphs
from lowbit.ops.linear import has_constant_weight

_SUFFIX = "__float"


@dataclasses.dataclass(frozen=True, slots=True)
class WithReference:
    """The joint model, and for each tensor that differs the name of its counterpart in the float reference."""

    model: ir.Model
    float_names: Mapping[str, str]


def with_reference(shaped: ir.Model, adapted: ir.Model) -> WithReference:
    """Return ``adapted`` with its linear layers fed as in ``shaped``."""
    model = adapted.clone()
    graph = model.graph
    original = {v.name: node for node in shaped.graph for v in node.outputs}
    differing = _differing(graph, original)
    if not differing:
        return WithReference(model, {})
    values = ir.convenience.create_value_mapping(graph)
    float_names: dict[str, ir.Value] = {}
    for node in shaped.graph:
        names = [tensor_name(v) for v in node.outputs]
        # What only the float model computes is needed for what differs after it.
        if any(name in differing or name not in values for name in names):
            _copy(graph, node, values, float_names)
    for node in tuple(graph):
        if _reads_float(node):
            for index, value in enumerate(node.inputs):
                if value is not None and value.name in float_names:
                    node.replace_input_with(index, float_names[value.name])
    graph.sort()
    return WithReference(model, {name: tensor_name(value) for name, value in float_names.items()})


def _differing(graph: ir.Graph, original: Mapping[str | None, ir.Node]) -> set[str]:
    """Return the values that differ from the float model's, up to the next linear layer."""
    found: set[str] = set()
    for node in graph:
        if _reads_float(node):
            continue
        after = any(v is not None and v.name in found for v in node.inputs)
        if after or not _same(node, original.get(node.outputs[0].name)):
            found.update(tensor_name(v) for v in node.outputs if v.name)
    return found


def _reads_float(node: ir.Node) -> bool:
    """Whether a node is a layer, or has graphs: a Loop holds the layers of a recurrent network."""
    return has_constant_weight(node) or bool(subgraphs(node))


def _same(node: ir.Node, other: ir.Node | None) -> bool:
    if other is None or node.op_type != other.op_type:
        return False
    inputs = [v.name if v is not None else None for v in node.inputs]
    if inputs != [v.name if v is not None else None for v in other.inputs]:
        return False
    return {k: repr(a.value) for k, a in node.attributes.items()} == {
        k: repr(a.value) for k, a in other.attributes.items()
    }


def _copy(
    graph: ir.Graph, node: ir.Node, values: Mapping[str, ir.Value], float_names: dict[str, ir.Value]
) -> None:
    """Add a node of the float model, reading float counterparts where there are any. Changes both."""
    inputs: list[ir.Value | None] = []
    for value in node.inputs:
        if value is None:
            inputs.append(None)
        elif value.name in float_names:
            inputs.append(float_names[value.name])
        else:
            inputs.append(_constant_or_value(graph, value, values))
    copy = ir.node(
        node.op_type,
        inputs,
        dict(node.attributes),
        domain=node.domain,
        num_outputs=len(node.outputs),
        name=f"{node.name}{_SUFFIX}",
    )
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name, new.type, new.shape = f"{old.name}{_SUFFIX}", old.type, old.shape
        float_names[tensor_name(old)] = new
    graph.append(copy)


def _constant_or_value(
    graph: ir.Graph, value: ir.Value, values: Mapping[str, ir.Value]
) -> ir.Value:
    """Return the value of that name, or the float model's constant, made known to the graph."""
    name = tensor_name(value)
    if name in values:
        return values[name]
    if name not in graph.initializers:
        graph.register_initializer(ir.val(name, const_value=value.const_value))
    return graph.initializers[name]
