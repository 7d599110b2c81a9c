"""The network as it is drawn: nodes without their Q/DQ pairs, folded into blocks.

A block is a run of nodes in graph order, so that no path leaves a block and comes back: the folded
network has no cycles, whatever the names of its nodes. It is cut where fewest tensors cross, which
in practice is between the residual blocks and layers that its author had in mind.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import msgspec
import onnx_ir as ir

from lowbit.analyze.quantizers import Quantizer
from lowbit.graph.naming import tensor_name
from lowbit.ops.quantizing import CONVERTERS
from lowbit.report.values import Network, NetworkBlock, NetworkNode

MOST_NODES = 36
"""Nodes that a block shows at once; a larger one is folded again."""

_BLOCKS, _FEWEST = 24, 8
"""Blocks that a larger one is folded into, about, and nodes that are worth folding."""


def draw_network(model: ir.Model, quantizers: Sequence[Quantizer]) -> Network:
    """Return the nodes of a quantized model and the blocks they are folded into."""
    nodes = tuple(_nodes(model.graph, quantizers))
    return Network(nodes=nodes, root=_Folding(nodes).block(0, len(nodes)))


def _nodes(graph: ir.Graph, quantizers: Sequence[Quantizer]) -> Iterator[NetworkNode]:
    by_source = {q.source: q for q in quantizers if q.kind == "activation"}
    weights: dict[str, list[str]] = defaultdict(list)
    for q in quantizers:
        if q.kind == "weight":
            weights[q.consumer].append(q.tensor)
    known: dict[ir.Node, int] = {}
    for node in graph:
        if node.op_type in CONVERTERS:
            continue
        sources = [_origin(value) for value in _read(node)]
        producers = [known[n] for value, _ in sources if (n := value.producer()) in known]
        name = tensor_name(node.outputs[0]) if node.outputs else ""
        quantizer = by_source.get(name)
        yield NetworkNode(
            name=str(node.name or name),
            op_type=node.op_type,
            tensor=quantizer.tensor if quantizer is not None else name,
            inputs=tuple(dict.fromkeys(producers)),
            weights=tuple(weights.get(str(node.name), ())),
            format=quantizer.format if quantizer is not None else "",
            quantized=quantizer is not None or any(passed for _, passed in sources),
        )
        known[node] = len(known)


def _read(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what a node computes from; for one with subgraphs, what those take from outside too."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        graphs = (
            [attribute.as_graph()]
            if attribute.type == ir.AttributeType.GRAPH
            else attribute.as_graphs()
            if attribute.type == ir.AttributeType.GRAPHS
            else []
        )
        for graph in graphs:
            own = {value for inner in graph for value in inner.outputs} | set(graph.inputs)
            yield from (v for inner in graph for v in _read(inner) if v not in own)


def _origin(value: ir.Value) -> tuple[ir.Value, bool]:
    """Return what a value is quantized from, and whether an activation was quantized on the way."""
    passed = False
    while (producer := value.producer()) is not None and producer.op_type in CONVERTERS:
        source = producer.inputs[0]
        if source is None or source.const_value is not None:
            return value, False
        value, passed = source, True
    return value, passed


class _Folding:
    """Where a run of nodes is best cut."""

    def __init__(self, nodes: Sequence[NetworkNode]) -> None:
        paths = [_path(node.name) for node in nodes]
        self._scopes = [p[:-1] or _path(n.tensor)[:-1] for p, n in zip(paths, nodes, strict=True)]
        self._names = [path[-1:] for path in paths]
        self._operators = [node.op_type for node in nodes]
        self._crossing = _crossing(nodes)

    def block(self, start: int, end: int) -> NetworkBlock:
        """Return the nodes from ``start`` to before ``end`` as a block."""
        blocks: tuple[NetworkBlock, ...] = ()
        if end - start > MOST_NODES:
            ends = [*self._cuts(start, end), end]
            blocks = self._told_apart(
                [self.block(a, b) for a, b in zip([start, *ends], ends, strict=False)]
            )
        return NetworkBlock(title=self._title(start, end), start=start, end=end, blocks=blocks)

    def _told_apart(self, blocks: Sequence[NetworkBlock]) -> tuple[NetworkBlock, ...]:
        """Call blocks that would have one title after their first nodes, and number what is left."""
        counts = Counter(block.title for block in blocks)
        first = ["/".join((*self._scopes[b.start], *self._names[b.start])) for b in blocks]
        titles = [f if counts[b.title] > 1 else b.title for b, f in zip(blocks, first, strict=True)]
        seen: Counter[str] = Counter()
        found = []
        for block, title in zip(blocks, titles, strict=True):
            seen[title] += 1
            number = "" if seen[title] == 1 else f" ({seen[title]})"
            found.append(msgspec.structs.replace(block, title=f"{title}{number}"))
        return tuple(found)

    def _cuts(self, start: int, end: int) -> Iterator[int]:
        size = max(_FEWEST, math.ceil((end - start) / _BLOCKS))
        last = start
        while end - last > size * 3 // 2:
            nearest, farthest = last + max(1, size // 2), min(end - 1, last + size * 3 // 2)
            last = min(range(nearest, farthest + 1), key=lambda at: self._cost(at, last + size))
            yield last

    def _cost(self, at: int, wanted: int) -> tuple[int, int, int]:
        common = _shared(self._scopes[at - 1], self._scopes[at])
        return self._crossing[at], len(common), abs(at - wanted)

    def _title(self, start: int, end: int) -> str:
        common = self._scopes[start] if start < end else ()
        for scope in self._scopes[start:end]:
            common = _shared(common, scope)
            if not common:
                break
        if common:
            return "/".join(common)
        first, last = (self._scopes[at] if start < end else () for at in (start, end - 1))
        if first and last and first[0] != last[0]:
            return f"{first[0]} to {last[0]}"
        counts = Counter(self._operators[start:end]).most_common(2)
        return ", ".join(f"{count} {operator}" for operator, count in counts)


def _path(name: str) -> tuple[str, ...]:
    """Return the parts of a node's name; of several that a converter has joined, those of the first."""
    return tuple(part for part in re.split(r"[/]|::", name.partition(";")[0]) if part)


def _shared(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    count = next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )
    return left[:count]


def _crossing(nodes: Sequence[NetworkNode]) -> list[int]:
    """Return, for each place between two nodes, how many tensors cross it."""
    last = list(range(len(nodes)))
    for index, node in enumerate(nodes):
        for producer in node.inputs:
            last[producer] = index
    change = [0] * (len(nodes) + 2)
    for index, consumer in enumerate(last):
        change[index + 1] += 1
        change[consumer + 1] -= 1
    crossing, total = [], 0
    for difference in change:
        total += difference
        crossing.append(total)
    return crossing
