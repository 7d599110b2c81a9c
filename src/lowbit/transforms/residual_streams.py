"""Find the residual streams of a transformer: the producers and consumers of their channels.

A stream is the tensors that residual sums connect. Embeddings and layers write into it, and nothing but
normalizations reads it, whose outputs go to layers alone: so it is in decoders, and in encoders that
normalize first. Where anything else reads or writes it, it cannot be rotated, and is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from lowbit.config.transforms import RotatedStream
from lowbit.graph.editing import constant_shape, is_constant
from lowbit.ops.composites import find_composites
from lowbit.ops.families import READ_SHAPES, LayerNorm, layer_norm
from lowbit.ops.linear import has_constant_weight, linear_operator
from lowbit.ops.weights import is_embedding


def channel_readers(value: ir.Value) -> list[ir.Node]:
    """Return the nodes that read a value's numbers, after casts that change nothing."""
    found: list[ir.Node] = []
    for node in dict.fromkeys(value.consumers()):
        if _changes_nothing(node):
            found += channel_readers(node.outputs[0])
        elif node.op_type not in READ_SHAPES:
            found.append(node)
    return found


def _changes_nothing(node: ir.Node) -> bool:
    source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
    same = source is not None and source.dtype == result.dtype is not None
    return node.op_type == "Cast" and same and not result.is_graph_output()


def _origin(value: ir.Value) -> ir.Value:
    """Return what a value is before casts that change nothing."""
    node = value.producer()
    while node is not None and _changes_nothing(node) and node.inputs[0] is not None:
        value = node.inputs[0]
        node = value.producer()
    return value


@dataclasses.dataclass(frozen=True, slots=True)
class ResidualStream:
    """One residual stream: its width, and who is at it."""

    size: int
    streams: tuple[RotatedStream, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Norm:
    """A normalization: the node that applies its factors, and all nodes that read the stream for it."""

    node: ir.Node
    readers: frozenset[ir.Node]
    sources: tuple[ir.Value, ...]


def find_residual_streams(graph: ir.Graph) -> list[ResidualStream]:
    """Return the streams that can be rotated, the widest first."""
    norms = _find_norms(graph)
    readers = {reader: norm for norm in norms for reader in norm.readers}
    seen: set[ir.Value] = set()
    found = []
    for norm in norms:
        if norm.sources[0] in seen:
            continue
        search = _StreamSearch(readers)
        is_whole = search.run(norm.sources)
        seen |= search.values
        stream = search.stream() if is_whole else None
        found += [stream] if stream is not None else []
    return sorted(found, key=lambda stream: -stream.size)


def _find_norms(graph: ir.Graph) -> list[_Norm]:
    """Return normalizations of the last axis, in one node or written out, with constant factors."""
    found = []
    for node in graph:
        row = layer_norm(node)
        if row is not None:
            sources = tuple(_origin(v) for v in node.inputs[: row.sources] if v is not None)
            found.append(_Norm(node, frozenset((node,)), sources))
    for composite in find_composites(graph):
        nodes = set(composite.nodes)
        # One that subtracts the mean has an offset too, which is not in this node.
        written_out = composite.last_axis and all(n.op_type != "Sub" for n in nodes)
        after = channel_readers(composite.nodes[-1].outputs[0])
        if not written_out or len(after) != 1 or not _multiplies_channels(after[0]):
            continue
        outside = [
            _origin(value)
            for node in composite.nodes
            for value in node.inputs
            if value is not None and not is_constant(value) and value.producer() not in nodes
        ]
        if len(set(outside)) == 1:
            found.append(_Norm(after[0], frozenset(nodes), (outside[0],)))
    return found


def _multiplies_channels(node: ir.Node) -> bool:
    shapes = [constant_shape(value) for value in node.inputs]
    return node.op_type == "Mul" and any(shape is not None and len(shape) == 1 for shape in shapes)


class _StreamSearch:
    """Follows one stream through its sums."""

    def __init__(self, readers: Mapping[ir.Node, _Norm]) -> None:
        self._readers = readers
        self._norms: dict[ir.Node, _Norm] = {}
        self._producers: dict[ir.Node, int] = {}
        self._consumers: list[ir.Node] = []
        self.values: set[ir.Value] = set()

    def run(self, start: Iterable[ir.Value]) -> bool:
        """Collect producers and consumers of the stream; return whether all of it can be rotated."""
        pending = list(start)
        while pending:
            value = _origin(pending.pop())
            if value in self.values:
                continue
            self.values.add(value)
            before, after = self._written(value), self._read(value)
            if before is None or after is None:
                return False
            pending += [*before, *after]
        return all(self._feeds_layers(norm) for norm in self._norms.values())

    def _written(self, value: ir.Value) -> list[ir.Value] | None:
        """Return what a value is a sum of; ``None`` if its producer cannot be rotated."""
        node = value.producer()
        if node is None or value.is_graph_output():
            return None
        if has_constant_weight(node):
            return self._written_by_layer(node)
        if is_embedding(node):
            shape = constant_shape(node.inputs[0])
            self._producers[node] = shape[-1] if shape else 0
            return []
        adds = _adds(node)
        if adds is not None:
            # Its last output is the sum; a bias that it also adds would have to be rotated too.
            is_sum = len(node.outputs) > 3 and value is node.outputs[3]
            return list(node.inputs[:2]) if is_sum and not _has_bias(node, adds) else None  # type: ignore[arg-type]
        return self._summed(node) if node.op_type == "Add" else None

    def _written_by_layer(self, node: ir.Node) -> list[ir.Value] | None:
        row, shape = linear_operator(node), constant_shape(node.inputs[1])
        if row is None or not row.is_matrix or shape is None or len(shape) != 2:
            return None
        self._producers[node] = shape[row.channel_axis(node)]
        return []

    def _summed(self, node: ir.Node) -> list[ir.Value] | None:
        """Return the addends of a sum that are computed; a constant one is rotated itself."""
        computed = [v for v in node.inputs if v is not None and not is_constant(v)]
        if len(computed) == 2:
            return computed
        shapes = [s for s in map(constant_shape, node.inputs) if s]
        if len(computed) != 1 or len(shapes) != 1:
            return None
        self._producers[node] = shapes[0][-1]
        return computed

    def _read(self, value: ir.Value) -> list[ir.Value] | None:
        """Return the sums that a value goes into; ``None`` if anything else reads it."""
        found: list[ir.Value] = []
        for node in channel_readers(value):
            if node in self._readers:
                norm = self._readers[node]
                self._norms[norm.node] = norm
                found += norm.sources
                if _adds(norm.node) is not None and len(norm.node.outputs) > 3:
                    found.append(norm.node.outputs[3])
            elif node.op_type == "Add":
                found.append(node.outputs[0])
            elif has_constant_weight(node):
                self._consumers.append(node)
            else:
                return None
        return found

    def _feeds_layers(self, norm: _Norm) -> bool:
        output = norm.node.outputs[0]
        layers = channel_readers(output)
        whole = not output.is_graph_output() and len(layers) > 0
        return whole and all(has_constant_weight(node) for node in layers)

    def stream(self) -> ResidualStream | None:
        """Return what was found; ``None`` if its width is not the same everywhere."""
        sizes = set(self._producers.values())
        if len(sizes) != 1 or not self._norms or _mix_of_means(self._norms):
            return None
        streams = [
            RotatedStream(
                norm=str(node.name),
                consumers=tuple(str(n.name) for n in channel_readers(node.outputs[0])),
            )
            for node in self._norms
        ]
        first = RotatedStream(
            producers=tuple(str(n.name) for n in self._layers_first()),
            consumers=tuple(str(n.name) for n in dict.fromkeys(self._consumers)),
        )
        return ResidualStream(sizes.pop(), (*streams, first))

    def _layers_first(self) -> list[ir.Node]:
        """Return the producers; a layer takes the Add of its bias along."""
        return sorted(self._producers, key=lambda node: not has_constant_weight(node))


def _adds(node: ir.Node) -> LayerNorm | None:
    """Return a normalization that adds two tensors first."""
    row = layer_norm(node)
    return None if row is None or row.sources == 1 else row


def _has_bias(node: ir.Node, row: LayerNorm) -> bool:
    at = row.bias
    return at is not None and len(node.inputs) > at and node.inputs[at] is not None


def _mix_of_means(norms: Iterable[ir.Node]) -> bool:
    """Whether some normalizations subtract the mean and others do not."""
    rows = [layer_norm(node) for node in norms]
    return len({row is not None and row.subtracts_mean for row in rows}) > 1
