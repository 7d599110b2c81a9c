"""Find the part of a detector that decodes boxes and scores, which eight bits destroy.

The tail of a graph is what comes after its last linear layers. In a classifier that is a pool or
a Softmax and quantizes well. In a detector it is arithmetic on pixel positions: a step of 640/127
pixels there, or one scale for boxes and probabilities together, and nothing is detected any more.
Structure gives such a tail away: grids of positions, expectations over a Softmax, exponentials,
suppression. Where it does not, measured ranges do (``lowbit.scales.alignment``).
"""

from __future__ import annotations

import dataclasses
import math

import onnx_ir as ir

from lowbit.graph.editing import constant_shape, is_constant
from lowbit.ops.activations import FUSED_ACTIVATIONS
from lowbit.ops.families import DECODE_DETECTIONS, LAYOUT, SCALINGS, SUMS
from lowbit.ops.linear import has_constant_weight, linear_operator

# A fixed kernel, such as the weights 0..15 of a box's expectation, is not a linear layer of the model.
_FIXED_KERNEL = 64
# A grid of positions is added to offsets, or multiplies them.
_PLACES = SUMS | SCALINGS


@dataclasses.dataclass(frozen=True, slots=True)
class Head:
    """The nodes of the tail, in graph order, and what says that they decode detections."""

    nodes: tuple[str, ...]
    evidence: tuple[str, ...]


def find_head(graph: ir.Graph) -> Head:
    """Return the tail of the graph and the structural evidence that it is a detection head."""
    tail = _tail(graph)
    evidence = [sign for node in tail if (sign := _sign(node)) is not None]
    return Head(tuple(node.name or "" for node in tail), tuple(evidence))


def _tail(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes with no linear layer after them that are none themselves."""
    layers = _linear_layers(graph)
    before_layer: set[ir.Node] = set()
    tail: list[ir.Node] = []
    for node in reversed(tuple(graph)):
        if node in layers or any(n in before_layer for n in node.successors()):
            before_layer.add(node)
        elif not _activates_layer(node, layers):
            tail.append(node)
    return tail[::-1]


def _activates_layer(node: ir.Node, layers: set[ir.Node]) -> bool:
    producer = node.inputs[0].producer() if node.inputs and node.inputs[0] else None
    return node.op_type in FUSED_ACTIVATIONS and producer in layers


def _linear_layers(graph: ir.Graph) -> set[ir.Node]:
    """Return the linear layers, of a model that has only small ones all of them."""
    every = {node for node in graph if has_constant_weight(node)}
    large = {n for n in every if math.prod(constant_shape(n.inputs[1]) or ()) > _FIXED_KERNEL}
    return large or every


def _sign(node: ir.Node) -> str | None:
    """Return what about this node of the tail speaks of decoding, if anything."""
    where = f"{node.op_type} {node.name}"
    if node.op_type in DECODE_DETECTIONS:
        return where
    if linear_operator(node) is not None and _follows_softmax(node):
        return f"an expectation over a Softmax at {where}"
    if node.op_type in _PLACES and any(_is_grid(v) for v in node.inputs):
        return f"a grid of positions at {where}"
    return None


def _follows_softmax(node: ir.Node) -> bool:
    value = node.inputs[0]
    for _ in range(4):
        producer = value.producer() if value is not None else None
        if producer is None:
            return False
        if producer.op_type == "Softmax":
            return True
        if producer.domain != "" or producer.op_type not in LAYOUT:
            return False
        value = producer.inputs[0]
    return False


def _is_grid(value: ir.Value | None) -> bool:
    """Whether a constant varies along two axes: positions, not a scalar or a channel's factor."""
    if value is None or not is_constant(value) or value.shape is None:
        return False
    return sum(isinstance(d, int) and d > 1 for d in value.shape) >= 2
