"""A gain for networks of x * sigmoid(x), on devices whose only gate is the hard sigmoid.

Of all h(g x) / g, with h the hard swish, the one nearest to x * sigmoid(x) has g = 1.1, not 1. To have it,
tensors carry the gain: what computes x is multiplied by it, and layers that read the result are divided by
it. Sums, concatenations, pooling and data movement pass a gain on, so it belongs to all tensors
between linear layers that they join; where anything else reads or writes one of these, there is none.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import (
    ARITHMETIC,
    add_constant,
    candidates,
    is_constant,
    is_float_tensor,
    only_consumer,
)
from lowbit.graph.naming import tensor_name
from lowbit.ops.activations import is_scale_invariant
from lowbit.ops.families import SUMS
from lowbit.ops.traits import Kind, clip_bounds, moves_exactly, traits_of
from lowbit.transforms.layers import WeightedLayer, find_layer

GAIN = 1.1

_UNDONE = "lowbit.gain_undone"
_PASSING = (Kind.MOVES, Kind.CONCATENATES, Kind.AVERAGES)


def swish_gain(graph: ir.Graph) -> None:
    """Let tensors around x * sigmoid(x) carry a gain, which the sigmoid's input is freed of."""
    gates = {gate: product for gate in candidates(graph) if (product := _product(gate))}
    layers = {node: find_layer(node) for node in graph}
    tied = _Tied()
    for node in graph:
        _tie(node, layers[node], gates, tied)
    for value in (*graph.inputs, *graph.outputs):
        tied.fix(value)
    gained = {gate for gate in gates if not tied.is_fixed(_source(gate))}
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


@dataclasses.dataclass(slots=True)
class _Tied:
    """Which tensors have the same gain, and which can have none."""

    parent: dict[ir.Value, ir.Value] = dataclasses.field(default_factory=dict)
    fixed: set[ir.Value] = dataclasses.field(default_factory=set)

    def root(self, value: ir.Value) -> ir.Value:
        """Return the tensor that stands for all that are tied to one."""
        while self.parent.setdefault(value, value) is not value:
            value = self.parent[value]
        return value

    def tie(self, *values: ir.Value) -> None:
        """Let tensors have the same gain."""
        first = self.root(values[0])
        for root in map(self.root, values[1:]):
            if root is not first:
                self.parent[root] = first
                if root in self.fixed:
                    self.fixed.add(first)

    def fix(self, *values: ir.Value) -> None:
        """Let tensors have no gain."""
        self.fixed.update(map(self.root, values))

    def is_fixed(self, value: ir.Value) -> bool:
        """Whether a tensor can have none."""
        return self.root(value) in self.fixed


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
    node: ir.Node, layer: WeightedLayer | None, gates: dict[ir.Node, ir.Node], tied: _Tied
) -> None:
    """Tie or fix what a node reads and writes; a layer does neither, unless others have its weights."""
    if node in gates:
        tied.tie(_source(node), gates[node].outputs[0])
        return
    if node in gates.values() or (layer is not None and not layer.has_shared_weight):
        return
    values = [v for v in (*node.inputs, *node.outputs) if v is not None and is_float_tensor(v)]
    moving = [value for value in values if not is_constant(value)]
    if moving and _passes_gain(node, constants=len(values) - len(moving)):
        tied.tie(*moving)
    else:
        tied.fix(*moving)


def _passes_gain(node: ir.Node, constants: int) -> bool:
    """Whether a factor on all that a node reads is a factor on all that it writes."""
    if node.domain != "" or any(v.is_graph_output() for v in node.outputs):
        return False
    if is_scale_invariant(node):
        return node.op_type != "Clip" or clip_bounds(node)[1] is None
    traits = traits_of(node)
    moves = traits is not None and traits.kind in _PASSING and moves_exactly(node)
    # A blend of numbers is linear in them; a constant beside them would have to be scaled as well.
    return node.op_type == "Resize" or (constants == 0 and (moves or node.op_type in SUMS))


def _scale(graph: ir.Graph, layer: WeightedLayer, carriers: set[ir.Value], tied: _Tied) -> None:
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
