"""Whether the nodes of a graph stand in an order they can be computed in."""

from __future__ import annotations

import onnx_ir as ir


def is_sorted(graph: ir.Graph) -> bool:
    """Whether every node stands behind those it reads from; unknown, so no, with subgraphs."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in seen:
                return False
        if any(a.type in _SUBGRAPHS for a in node.attributes.values()):
            return False
        seen.add(node)
    return True


_SUBGRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
