"""Give every node and value a name of its own, and keep the names that users know.

A name that was given wins over one that is made up, wherever the two nodes stand. A node that
shares its name with an earlier one gets a number and still answers to the name it had.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from lowbit.graph.names import answer_to


def name_everything(model: ir.Model) -> None:
    """Name what has no name, and make all names unique. Changes ``model``."""
    _name_values(model.graph)
    _name_nodes(model.graph)


def _name_nodes(graph: ir.Graph) -> None:
    """Name unnamed nodes after what they write."""
    nodes = tuple(graph.all_nodes())
    taken = {node.name for node in nodes}
    owners: set[str] = set()
    for node in nodes:
        given = node.name
        if given and given not in owners:
            owners.add(given)
            continue
        written = (value.name for value in node.outputs if value.name)
        node.name = _unique(given or next(written, node.op_type), taken)
        owners.add(node.name)
        answer_to(node, given)


def _name_values(graph: ir.Graph) -> None:
    values = tuple(dict.fromkeys(_values(graph)))
    taken = {value.name for value in values}
    owners: set[str] = set()
    for value in values:
        name = value.name
        if name and name not in owners:
            owners.add(name)
        elif _is_asked_for(value):
            value.name = _unique(name or _description(value), taken)
            owners.add(value.name)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value, those whose names others rely on first."""
    parts = (graph, *graph.subgraphs())
    for part in parts:
        yield from (*part.inputs, *part.outputs)
    for part in parts:
        yield from part.initializers.values()
    for part in parts:
        for node in part:
            yield from node.outputs


def _is_asked_for(value: ir.Value) -> bool:
    """Whether an output is computed: one of another domain without a name is left out on purpose.

    A standard operator's is named here; whether it may be left out is known by its schema later.
    """
    producer = value.producer()
    if producer is None or producer.domain == "":
        return True
    return bool(value.uses()) or value.is_graph_output()


def _description(value: ir.Value) -> str:
    producer = value.producer()
    if producer is None:
        return "value"
    return f"{producer.name or producer.op_type}_output"


def _unique(name: str, taken: set[str | None]) -> str:
    """Return ``name`` or a numbered form of it that is not in ``taken``, and put it there."""
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
