"""Graphs inside graphs: the branches of an If, the body of a Loop.

onnx-ir's own iterators do the same in several times the time, which is most of what preparing a graph of
many nodes takes.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def subgraphs(node: ir.Node) -> list[ir.Graph]:
    """Return the graphs that are attributes of a node, such as the branches of an If."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        if attribute.type not in _GRAPHS or attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        else:
            found += attribute.as_graphs()
    return found


def every_graph(graph: ir.Graph) -> list[ir.Graph]:
    """Return a graph and all graphs inside it, in order."""
    found = [graph]
    for node in graph:
        for inner in subgraphs(node):
            found += every_graph(inner)
    return found


def every_node(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph, each followed by those inside it."""
    for node in graph:
        yield node
        for inner in subgraphs(node):
            yield from every_node(inner)
