"""Find groups of tensors that can have a common factor, and the layers that absorb it.

Linear layers take a factor on what they read, or write, into their weights. Between them sums,
concatenations, pooling, data movement and scale-invariant activations pass a factor on, so it belongs to all
tensors that these join. Where anything else reads or writes one of them, the factor is one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.disjoint_sets import DisjointSets
from lowbit.graph.editing import (
    constant,
    is_constant,
    is_float_tensor,
    node_inputs,
    replace_constant,
)
from lowbit.graph.naming import tensor_name
from lowbit.ops.activations import is_scale_invariant
from lowbit.ops.families import SUMS
from lowbit.ops.traits import Kind, clip_bounds, moves_exactly, traits_of
from lowbit.transforms.layers import WeightedLayer, find_layer

_CLOSE = 1e-5
"""A bound that was multiplied by a factor is that far from it at most."""

_PASSING = (Kind.MOVES, Kind.CONCATENATES, Kind.AVERAGES)


def passes_factor(node: ir.Node, constants: int) -> bool:
    """Whether a factor on all that a node reads is a factor on all that it writes.

    ``constants`` is how many of the floats that it reads are constants.
    """
    if node.domain != "" or any(v.is_graph_output() for v in node.outputs):
        return False
    if is_scale_invariant(node):
        return node.op_type != "Clip" or clip_bounds(node)[1] is None
    traits = traits_of(node)
    moves = traits is not None and traits.kind in _PASSING and moves_exactly(node)
    # A blend of numbers is linear in them; a constant among them would have to be scaled as well.
    return node.op_type == "Resize" or (constants == 0 and (moves or node.op_type in SUMS))


@dataclasses.dataclass(frozen=True, slots=True)
class FactorGroup:
    """Tensors that have a factor together.

    Attributes:
        tensors: The tensors, in the order of the graph.
        scaled: The nodes among them that have constants which a factor multiplies: what a sum adds, and
            the bounds of a Clip.
    """

    tensors: tuple[ir.Value, ...]
    scaled: tuple[ir.Node, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        return tuple(tensor_name(value) for value in self.tensors)


@dataclasses.dataclass(frozen=True, slots=True)
class FactorGroups:
    """All groups of a graph that may have a factor, and its linear layers."""

    groups: tuple[FactorGroup, ...]
    layers: tuple[WeightedLayer, ...]

    @classmethod
    def of(cls, graph: ir.Graph) -> FactorGroups:
        """Find the groups of a graph; weights are not held."""
        tied: DisjointSets[ir.Value] = DisjointSets()
        fixed: list[ir.Value] = [*graph.inputs, *graph.outputs]
        layers: list[WeightedLayer] = []
        scaled: list[ir.Node] = []
        for node in graph:
            layer = find_layer(node, hold=False)
            if layer is not None and not layer.has_shared_weight:
                layers.append(layer)
                tied.join(*layer.node.outputs)
                continue
            if _takes_constants(node):
                scaled.append(node)
            fixed += _tie(node, tied)
        frozen = {tied.root(value) for value in fixed}
        nodes: dict[ir.Value, list[ir.Node]] = {}
        for node in scaled:
            nodes.setdefault(tied.root(node.outputs[0]), []).append(node)
        groups = tuple(
            FactorGroup(tuple(values), tuple(nodes.get(root, ())))
            for values in tied.sets()
            if (root := tied.root(values[0])) not in frozen
        )
        return cls(groups, tuple(layers))

    def rescale(self, graph: ir.Graph, factors: Sequence[float]) -> None:
        """Multiply each group by its factor. Changes ``graph``, which they were found in."""
        by_tensor = {
            value: factor
            for group, factor in zip(self.groups, factors, strict=True)
            for value in group.tensors
        }
        for layer in self.layers:
            source, result = layer.node.inputs[0], layer.node.outputs[0]
            before = 1.0 if source is None else by_tensor.get(source, 1.0)
            after = by_tensor.get(result, 1.0)
            if before != 1.0 or after != 1.0:
                layer.scale_inputs(np.full(layer.inputs, 1 / before, np.float32))
                layer.scale_outputs(np.full(layer.outputs, after, np.float32))
                layer.write(graph)
        for group, factor in zip(self.groups, factors, strict=True):
            for node in group.scaled if factor != 1.0 else ():
                _scale_constants(graph, node, factor)


def factors_of(groups: FactorGroups, named: Mapping[str, float]) -> list[float]:
    """Return the factor of each group from those of tensors; one where none of its tensors is named."""
    return [
        next((named[name] for name in group.names if name in named), 1.0) for group in groups.groups
    ]


def _tie(node: ir.Node, tied: DisjointSets[ir.Value]) -> list[ir.Value]:
    """Tie the tensors around a node that have the same factor; return those that can have none."""
    read = [value for value in node_inputs(node) if is_float_tensor(value)]
    moving = [v for v in (*read, *node.outputs) if is_float_tensor(v) and not is_constant(v)]
    constants = sum(is_constant(value) for value in read)
    if not moving or not (_takes_constants(node) or passes_factor(node, constants)):
        return moving
    tied.join(*moving)
    return []


def _takes_constants(node: ir.Node) -> bool:
    """Whether a node passes a factor on if its constants are multiplied by it too."""
    if node.domain != "" or any(value.is_graph_output() for value in node.outputs):
        return False
    own = [value for value in node.inputs if value is not None and is_constant(value)]
    if not own or len(own) == len(node.inputs):
        return False
    if node.op_type == "Clip":
        return is_scale_invariant(node) and is_constant(node.inputs[-1])
    return node.op_type in SUMS and all(value.dtype == ir.DataType.FLOAT for value in own)


def _scale_constants(graph: ir.Graph, node: ir.Node, factor: float) -> None:
    for index, value in enumerate(node.inputs):
        data = constant(value)
        if data is not None:
            replace_constant(graph, node, index, np.asarray(data * np.float32(factor), data.dtype))


def saturated_clips(graph: ir.Graph, ranges: Mapping[str, tuple[float, float]]) -> list[ir.Node]:
    """Return the Clips from zero whose upper bound is at or above the range that their output is rounded to."""
    return [node for node in _clips_from_zero(graph) if _is_saturated(node, ranges)]


def _clips_from_zero(graph: ir.Graph) -> Iterable[ir.Node]:
    return (n for n in graph if n.op_type == "Clip" and clip_bounds(n)[0] == 0.0)


def _is_saturated(node: ir.Node, ranges: Mapping[str, tuple[float, float]]) -> bool:
    bound, limits = clip_bounds(node)[1], ranges.get(tensor_name(node.outputs[0]))
    return bound is not None and limits is not None and limits[1] <= bound * (1 + _CLOSE)
