"""Find the parts of an attention network that compute in float, between its linear layers.

Cut at its linear layers and at products of activations, a graph falls into parts that are connected
by float tensors: residual stream with its normalizations, attention scores with mask and Softmax,
rotary embeddings, activations, states of recurrent layers. The structure shows what a part is, whoever exported it and however
much of it is fused. Integers gain nothing in these parts, and lose most of the accuracy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

import onnx_ir as ir

from lowbit.graph.disjoint_sets import DisjointSets
from lowbit.graph.editing import is_constant, node_inputs
from lowbit.graph.naming import operator_name
from lowbit.graph.nesting import subgraphs
from lowbit.ops.composites import Composite, find_composites
from lowbit.ops.families import ATTENTION, NORMALIZE_LAST_AXES, PRODUCTS
from lowbit.ops.linear import has_constant_weight, linear_operator
from lowbit.ops.weights import RECURRENT
from lowbit.planning.masks import find_masks
from lowbit.targets.target import FloatPart


@dataclasses.dataclass(frozen=True, slots=True)
class FloatParts:
    """The parts of a graph that compute in float.

    Attributes:
        nodes: Nodes that do, with the reason.
        tensors: Tensors that only linear layers quantize, and each for itself alone.
        masks: Tensors that nothing quantizes.
    """

    nodes: Mapping[ir.Node, str] = dataclasses.field(default_factory=dict)
    tensors: frozenset[ir.Value] = frozenset()
    masks: frozenset[ir.Value] = frozenset()


@dataclasses.dataclass(slots=True)
class _Part:
    nodes: list[ir.Node] = dataclasses.field(default_factory=list)
    tensors: set[ir.Value] = dataclasses.field(default_factory=set)
    has_norm: bool = False
    has_softmax: bool = False
    has_attention: bool = False
    has_recurrence: bool = False
    beside_conv: bool = False
    after_product: bool = False
    before_product: bool = False

    @property
    def why(self) -> str | None:
        """The evidence that this part computes in float."""
        return self.attention or ("next to a recurrent layer" if self.has_recurrence else None)

    @property
    def attention(self) -> str | None:
        """The evidence that this is part of an attention network."""
        if self.has_attention or (self.has_softmax and self.after_product and self.before_product):
            return "attention"
        return "stream of a normalization" if self.has_norm else None


def find_float_parts(graph: ir.Graph, kinds: Collection[FloatPart]) -> FloatParts:
    """Return what a target that keeps these kinds of parts in float does not quantize."""
    found = _find_blocks(graph) if "blocks" in kinds else FloatParts()
    if "masks" not in kinds:
        return found
    masks = frozenset(find_masks(graph))
    nodes = dict(found.nodes)
    for node in graph:
        if any(value in masks for value in node.outputs):
            nodes.setdefault(node, "on the way from a mask to its Softmax")
    return FloatParts(nodes, found.tensors, masks)


def _find_blocks(graph: ir.Graph) -> FloatParts:
    """Return the parts of attention networks, and operators that are written out."""
    composites = find_composites(graph)
    inner = {node: c for c in composites for node in c.nodes}
    parts = _parts(graph, inner)
    reasons = {id(part): part.why for part in parts}
    if any(part.attention for part in parts):
        for part in parts:
            if not part.beside_conv and reasons[id(part)] is None:
                reasons[id(part)] = "between matrix layers of an attention network"
    nodes: dict[ir.Node, str] = {
        n: f"part of a {c.name} in several nodes" for n, c in inner.items()
    }
    tensors = _inner_tensors(composites)
    for part in parts:
        why = reasons[id(part)]
        if why is not None:
            nodes.update(dict.fromkeys(part.nodes, why))
            tensors |= part.tensors
    return FloatParts(nodes, frozenset(tensors))


def _parts(graph: ir.Graph, inner: Mapping[ir.Node, Composite]) -> list[_Part]:
    """Return the parts that a graph falls into when cut at linear layers and products."""
    sets: DisjointSets[ir.Value] = DisjointSets()
    cuts = [node for node in graph if _is_cut(node)]
    cut = set(cuts)
    kept = [node for node in graph if node not in cut]
    for node in kept:
        if values := _touched(node):
            sets.join(*values)
    parts: dict[ir.Value, _Part] = {}
    for node in kept:
        values = _touched(node)
        for value in values:
            part = parts.setdefault(sets.root(value), _Part())
            part.tensors.add(value)
        if values:
            _enter(parts[sets.root(values[0])], node, inner)
    for node in cuts:
        for value in _touched(node):
            part = parts.setdefault(sets.root(value), _Part())
            part.tensors.add(value)
            _enter_cut(part, node, is_output=value in node.outputs)
    return list(parts.values())


def _enter(part: _Part, node: ir.Node, inner: Mapping[ir.Node, Composite]) -> None:
    part.nodes.append(node)
    composite = inner.get(node)
    part.has_norm |= node.op_type in NORMALIZE_LAST_AXES or (
        composite is not None and composite.last_axis
    )
    part.has_softmax |= node.op_type == "Softmax" or (
        composite is not None and composite.name == "Softmax"
    )
    part.has_attention |= operator_name(node) in ATTENTION
    part.has_recurrence |= _recurs(node)


def _recurs(node: ir.Node) -> bool:
    """Whether a node is a recurrent layer, or has one in a branch."""
    if node.op_type in RECURRENT:
        return True
    return any(_recurs(inner) for graph in subgraphs(node) for inner in graph)


def _enter_cut(part: _Part, node: ir.Node, *, is_output: bool) -> None:
    row = linear_operator(node) if has_constant_weight(node) else None
    part.beside_conv |= row is not None and not row.is_matrix
    if row is None:
        part.after_product |= is_output
        part.before_product |= not is_output


def _is_cut(node: ir.Node) -> bool:
    if has_constant_weight(node):
        return True
    return node.op_type in PRODUCTS and sum(1 for _ in _floats(node.inputs)) > 1


def _touched(node: ir.Node) -> list[ir.Value]:
    """Return the float tensors that a node reads, in its branches too, and writes."""
    return list(_floats((*node_inputs(node), *node.outputs)))


def _floats(values: Iterable[ir.Value | None]) -> Iterable[ir.Value]:
    for value in values:
        if value is not None and value.dtype == ir.DataType.FLOAT and not is_constant(value):
            yield value


def _inner_tensors(composites: Iterable[Composite]) -> set[ir.Value]:
    """Return the tensors that only the nodes of one operator read."""
    found: set[ir.Value] = set()
    for composite in composites:
        own = set(composite.nodes)
        for node in composite.nodes:
            found.update(v for v in node.outputs if v.uses() and own.issuperset(v.consumers()))
    return found
