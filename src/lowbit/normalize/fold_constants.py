"""Compute what depends on constants only, once, and keep the result as a constant.

Weights that reach their operator through Cast, Transpose, Reshape or arithmetic become weights.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import is_constant
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, session

# Random, quantizing, or larger than what they are made from.
_NEVER = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli "
    "QuantizeLinear DequantizeLinear ConstantOfShape Range Expand Tile".split()
)


def fold_constants(model: ir.Model) -> None:
    """Replace every node of constant inputs by its result. Changes ``model``."""
    graph = model.graph
    nodes = _constant_nodes(graph)
    wanted = _results(nodes)
    if not wanted:
        return
    for value, array in zip(wanted, _evaluate(model, wanted), strict=True):
        if _is_numeric(array):
            _make_constant(graph, value, array)
    for node in reversed(nodes):
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            graph.remove(node, safe=True)


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


def _results(nodes: list[ir.Node]) -> list[ir.Value]:
    """Return the values by which the rest of the graph depends on ``nodes``.

    A graph output has to be written by a node, so what writes one stays.
    """
    inside = set(nodes)
    return [
        value
        for node in nodes
        for value in node.outputs
        if not value.is_graph_output() and any(user not in inside for user, _ in value.uses())
    ]


def _evaluate(model: ir.Model, wanted: list[ir.Value]) -> list[Array]:
    part = ir.convenience.extract(model.graph, (), wanted)
    with session(
        ir.Model(part, ir_version=model.ir_version), name="the constant part of the model"
    ) as running:
        return running.run([tensor_name(value) for value in wanted], {})


def _is_numeric(array: object) -> bool:
    """Whether this is a tensor of numbers: sequences and strings stay with their nodes."""
    return isinstance(array, np.ndarray) and array.dtype.kind not in "OSU"


def _make_constant(graph: ir.Graph, value: ir.Value, data: Array) -> None:
    name = tensor_name(value)
    new = ir.val(f"{name}_folded", const_value=ir.tensor(data, name=name))
    value.replace_all_uses_with(new)
    value.name = f"{name}_unused"
    new.name = name
    graph.register_initializer(new)
