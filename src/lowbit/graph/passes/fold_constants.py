"""Compute what depends on constants only, once, and keep the result as a constant.

Weights that reach their operator through Cast, Transpose, Reshape or arithmetic become weights.
"""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.constants import is_constant
from lowbit.graph.names import tensor_name
from lowbit.graph.session import session

_NEVER = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli "
    "QuantizeLinear DequantizeLinear ConstantOfShape Range Expand Tile".split()
)


def fold_constants(model: ir.Model) -> None:
    """Replace every node of constant inputs by its result. Changes ``model``."""
    nodes = _constant_nodes(model.graph)
    if not nodes:
        return
    known = {id(value) for node in nodes for value in node.outputs}
    wanted = [
        value
        for node in nodes
        for value in node.outputs
        if value.is_graph_output()
        or any(user.name not in _names(nodes) for user, _ in value.uses())
    ]
    results = _evaluate(model, nodes, [tensor_name(value) for value in wanted])
    for value, data in zip(wanted, results, strict=True):
        _make_constant(model.graph, value, data)
    for node in reversed(nodes):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            model.graph.remove(node, safe=True)
    del known


def _names(nodes: list[ir.Node]) -> set[str | None]:
    return {node.name for node in nodes}


def _constant_nodes(graph: ir.Graph) -> list[ir.Node]:
    found: list[ir.Node] = []
    made: set[ir.Value] = set()
    for node in graph:
        if node.op_type in _NEVER or node.domain != "" or _has_subgraph(node) or not node.inputs:
            continue
        if all(v is None or v in made or is_constant(v) for v in node.inputs):
            found.append(node)
            made.update(node.outputs)
    return found


def _has_subgraph(node: ir.Node) -> bool:
    return any(
        a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for a in node.attributes.values()
    )


def _evaluate(model: ir.Model, nodes: list[ir.Node], wanted: list[str]) -> list[ir.TensorProtocol]:
    clone = model.clone()
    values = ir.convenience.create_value_mapping(clone.graph)
    keep = _names(nodes)
    clone.graph.outputs.clear()
    clone.graph.outputs.extend(values[name] for name in wanted)
    for node in reversed(tuple(clone.graph)):
        if node.name not in keep:
            clone.graph.remove(node, safe=True)
    clone.graph.inputs.clear()
    for name, value in tuple(clone.graph.initializers.items()):
        if not value.uses():
            del clone.graph.initializers[name]
    with session(clone, name="the constant part of the model") as running:
        arrays = running.run(wanted, {})
    return [ir.tensor(array, name=name) for name, array in zip(wanted, arrays, strict=True)]


def _make_constant(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    name = tensor_name(value)
    if value.is_graph_output():
        return
    new = ir.val(f"{name}_folded", const_value=tensor)
    value.replace_all_uses_with(new)
    value.name = f"{name}_unused"
    new.name = name
    graph.register_initializer(new)
