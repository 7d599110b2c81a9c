"""Take an offset off tensors, which the biases of the layers around them absorb.

A Relu or Clip of h, less c, is a Clip of h - c: the bias of the layer that produces h takes the offset. Layers
that consume the tensor add what c was worth to their biases. That is exact where every weight meets a number of
the tensor: padding stands for zero, which would be c too much. Between the two, data movement, Concat and
MaxPool pass an offset on, so it belongs to all tensors that these join. Averages do not: they vary much
less, around a mean that would have to be in their range.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lowbit.graph.disjoint_sets import DisjointSets
from lowbit.graph.editing import (
    SATURATED,
    add_constant,
    is_constant,
    is_float_tensor,
    node_inputs,
    only_consumer,
    replace_node,
)
from lowbit.graph.naming import tensor_name
from lowbit.ops.traits import Kind, clip_bounds, traits_of
from lowbit.transforms.layers import WeightedLayer, find_biased_layer

_NOT_PASSING = frozenset(("Pad", "Resize"))
"""Data movement that may put zeros into a tensor."""


@dataclasses.dataclass(frozen=True, slots=True)
class OffsetGroup:
    """Tensors that have an offset together.

    Attributes:
        tensors: Their names, in the order of the graph.
        activations: The nodes of Relu and Clip that they begin at, with the layers before these.
        consumers: The layers that they end at.
    """

    tensors: tuple[str, ...]
    activations: tuple[tuple[ir.Node, WeightedLayer], ...]
    consumers: tuple[WeightedLayer, ...]

    @property
    def bound(self) -> float | None:
        """The lowest upper bound of its Clips, if it has any."""
        bounds = [clip_bounds(node)[1] for node, _ in self.activations]
        return min((bound for bound in bounds if bound is not None), default=None)

    @property
    def layers(self) -> tuple[WeightedLayer, ...]:
        """The layers around it, whose biases take the offset."""
        return (*(layer for _, layer in self.activations), *self.consumers)


def find_offset_groups(graph: ir.Graph) -> list[OffsetGroup]:
    """Return the groups of a graph that may have an offset; large weights are not held."""
    layers = {
        node: layer for node in graph if (layer := find_biased_layer(node, hold=False)) is not None
    }
    tied: DisjointSets[ir.Value] = DisjointSets()
    fixed: list[ir.Value] = [*graph.inputs, *graph.outputs]
    starts: list[tuple[ir.Node, WeightedLayer]] = []
    for node in graph:
        producer = _producer(node, layers)
        if producer is not None:
            starts.append((node, producer))
            tied.root(node.outputs[0])
        else:
            fixed += _tie(node, layers, tied)
    frozen = {tied.root(value) for value in fixed}
    return [
        OffsetGroup(
            tuple(tensor_name(value) for value in values),
            tuple(start for start in starts if tied.root(start[0].outputs[0]) == root),
            tuple(_consumers(values, layers)),
        )
        for values in tied.sets()
        if (root := tied.root(values[0])) not in frozen
    ]


def _producer(node: ir.Node, layers: Mapping[ir.Node, WeightedLayer]) -> WeightedLayer | None:
    """Return the layer before a Relu, or a Clip from zero, that nothing else reads."""
    if node.op_type not in ("Relu", "Clip") or node.domain != "" or node.inputs[0] is None:
        return None
    bounded = all(value is None or is_constant(value) for value in node.inputs[1:])
    source = node.inputs[0]
    producer = source.producer()
    is_between = only_consumer(source) is node and bounded and clip_bounds(node)[0] == 0.0
    return layers.get(producer) if producer is not None and is_between else None


def _tie(
    node: ir.Node, layers: Mapping[ir.Node, WeightedLayer], tied: DisjointSets[ir.Value]
) -> list[ir.Value]:
    """Tie the tensors around a node that have the same offset; return those that can have none."""
    layer = layers.get(node)
    if layer is not None and layer.geometry.meets_all:
        return [*(value for value in node.inputs[1:] if value is not None), *node.outputs]
    read = [value for value in node_inputs(node) if is_float_tensor(value)]
    moving = [value for value in (*read, *node.outputs) if is_float_tensor(value)]
    if not moving or not _passes_offset(node) or any(is_constant(value) for value in read):
        return moving
    tied.join(*moving)
    return []


def _passes_offset(node: ir.Node) -> bool:
    traits = traits_of(node)
    passes = traits is not None and traits.kind in (Kind.MOVES, Kind.CONCATENATES)
    return passes and node.domain == "" and node.op_type not in _NOT_PASSING


def _consumers(
    values: list[ir.Value], layers: Mapping[ir.Node, WeightedLayer]
) -> list[WeightedLayer]:
    uses = (use.node for value in values for use in value.uses())
    return [layers[node] for node in dict.fromkeys(uses) if node in layers]


def take_offsets(graph: ir.Graph, offsets: Mapping[str, float]) -> int:
    """Take offsets off the groups of the tensors that are named; return of how many. Changes ``graph``."""
    taken = 0
    for group in find_offset_groups(graph):
        offset = next((offsets[name] for name in group.tensors if name in offsets), 0.0)
        if offset == 0.0:
            continue
        taken += 1
        for node, layer in group.activations:
            layer.add_to_bias(graph, np.full(layer.outputs, -offset))
            _clip(graph, node, offset)
        for layer in group.consumers:
            kernel = layer.kernel.astype(np.float64)
            layer.add_to_bias(graph, offset * kernel.sum(axis=(2, 3)).reshape(-1))
    return taken


def _clip(graph: ir.Graph, node: ir.Node, offset: float) -> None:
    """Replace a Relu or Clip by the Clip whose bounds are less by the offset. Changes ``graph``."""
    high = clip_bounds(node)[1]
    bounds = [-offset] if high is None else [-offset, high - offset]
    constants = [
        add_constant(graph, f"{node.name}_bound", np.array(bound, np.float32)) for bound in bounds
    ]
    clip = ir.node("Clip", [node.inputs[0], *constants])
    clip.meta[SATURATED] = True
    replace_node(graph, node, [clip])
