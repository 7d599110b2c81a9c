"""A gain for networks of x * sigmoid(x), on devices whose only gate is the hard sigmoid.

Of all h(g x) / g, with h the hard swish, the one nearest to x * sigmoid(x) has g = 1.1, not 1. To have it,
tensors carry the gain: what computes x is multiplied by it, and layers that read the result are divided by
it. Sums, concatenations, pooling and data movement pass a gain on, so it belongs to all tensors
between linear layers that they join; where anything else reads or writes one of these, there is none.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.disjoint_sets import DisjointSets
from lowbit.graph.editing import (
    ARITHMETIC,
    add_constant,
    candidates,
    is_constant,
    is_float_tensor,
    only_consumer,
)
from lowbit.graph.naming import tensor_name
from lowbit.transforms.factor_groups import passes_factor
from lowbit.transforms.layers import WeightedLayer, find_layer

GAIN = 1.1

_UNDONE = "lowbit.gain_undone"


def swish_gain(graph: ir.Graph) -> None:
    """Multiply tensors around x * sigmoid(x) by a gain, and divide the sigmoid's input by it."""
    gates = {gate: product for gate in candidates(graph) if (product := _product(gate))}
    layers = {node: find_layer(node) for node in graph}
    tied: DisjointSets[ir.Value] = DisjointSets()
    fixed = [*graph.inputs, *graph.outputs]
    products = set(gates.values())
    for node in graph:
        if node not in products:
            fixed += _tie(node, layers[node], gates, tied)
    without = {tied.root(value) for value in fixed}
    gained = {gate for gate in gates if tied.root(_source(gate)) not in without}
    carriers = {tied.root(_source(gate)) for gate in gained}
    for layer in layers.values():
        if layer is not None:
            _scale(graph, layer, carriers, tied)
    for gate in gained:
        _undo_before(graph, gate)


def freed_of_gain(value: ir.Value | None) -> ir.Value | None:
    """Return the tensor with the gain, of what a sigmoid reads."""
    node = value.producer() if value is not None else None
    return node.inputs[0] if node is not None and node.meta.get(_UNDONE) else value


def drop_undone(graph: ir.Graph) -> None:
    """Drop what freed tensors of the gain for sigmoids that are no more."""
    for node in tuple(graph):
        if node.meta.get(_UNDONE) and not node.outputs[0].uses():
            graph.remove(node, safe=True)


def _source(gate: ir.Node) -> ir.Value:
    value = gate.inputs[0]
    if value is None:
        raise ValueError(f"node {gate.name!r} reads nothing")
    return value


def _product(gate: ir.Node) -> ir.Node | None:
    """Return the node that multiplies a sigmoid with what it reads, if all of it is for that."""
    if gate.op_type != "Sigmoid" or gate.inputs[0] is None:
        return None
    product = only_consumer(gate.outputs[0])
    is_swish = product is not None and product.op_type == "Mul" and product.domain == ""
    if product is None or not is_swish:
        return None
    return product if set(product.inputs) == {gate.inputs[0], gate.outputs[0]} else None


def _tie(
    node: ir.Node,
    layer: WeightedLayer | None,
    gates: dict[ir.Node, ir.Node],
    tied: DisjointSets[ir.Value],
) -> list[ir.Value]:
    """Tie the tensors around a node that have the same gain; return those that can have none.

    A layer does neither, unless others have its weights.
    """
    if node in gates:
        tied.join(_source(node), gates[node].outputs[0])
        return []
    if layer is not None and not layer.has_shared_weight:
        return []
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and is_float_tensor(v)]
    moving = [value for value in values if not is_constant(value)]
    if not moving or not passes_factor(node, constants=len(values) - len(moving)):
        return moving
    tied.join(*moving)
    return []


def _scale(
    graph: ir.Graph,
    layer: WeightedLayer,
    carriers: set[ir.Value],
    tied: DisjointSets[ir.Value],
) -> None:
    source, result = layer.node.inputs[0], layer.node.outputs[0]
    before, after = (
        GAIN if value is not None and tied.root(value) in carriers else 1.0
        for value in (source, result)
    )
    if before == after == 1.0:
        return
    layer.scale_inputs(np.full(layer.inputs, 1 / before, np.float32))
    layer.scale_outputs(np.full(layer.outputs, after, np.float32))
    layer.write(graph)


def _undo_before(graph: ir.Graph, gate: ir.Node) -> None:
    source = _source(gate)
    name = tensor_name(source)
    factor = add_constant(graph, f"{name}_gain", np.array(1 / GAIN, np.float32))
    node = ir.node("Mul", [source, factor], name=f"{gate.name}_gain")
    # Where the sigmoid stays as it is, this belongs to it, and is not quantized by itself.
    node.meta[ARITHMETIC] = node.meta[_UNDONE] = True
    result = node.outputs[0]
    result.name, result.type, result.shape = f"{name}_without_gain", source.type, source.shape
    graph.insert_before(gate, node)
    gate.replace_input_with(0, result)
