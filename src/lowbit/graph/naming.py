"""Name nodes and tensors uniquely, and keep the names that users know through every fusion.

A name that was given wins over one that is made up, wherever the two nodes stand. A node that shares
its name with an earlier one gets a number and still answers to the name it had.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from lowbit.graph.nesting import every_graph, every_node

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

_KEY = "lowbit.aliases"
_CACHE = re.compile(r"past|present|cache", re.IGNORECASE)


def names_of(node: ir.Node) -> tuple[str, ...]:
    """Return every name of the node: its own, those fused into it, and its outputs'."""
    own = (node.name,) if node.name else ()
    outputs = tuple(value.name for value in node.outputs if value.name)
    return tuple(dict.fromkeys((*own, *node.meta.get(_KEY, ()), *outputs)))


def answer_to(node: ir.Node, *names: str | None) -> None:
    """Give ``node`` further names that users may call it by. Changes ``node``."""
    given = (name for name in names if name)
    node.meta[_KEY] = tuple(dict.fromkeys((*node.meta.get(_KEY, ()), *given)))


def absorb(survivor: ir.Node, gone: ir.Node) -> None:
    """Add the names of ``gone`` to those of ``survivor``. Changes ``survivor``."""
    answer_to(survivor, *names_of(survivor)[:1], *names_of(gone))


def is_cache_name(name: str) -> bool:
    """Whether an input or an output of a language model is called as its caches of keys and values are."""
    return _CACHE.search(name) is not None


def tensor_name(value: ir.Value) -> str:
    """Return the name of a value of a normalized model, where every value has one."""
    if value.name is None:
        raise ValueError("a normalized model has named values")
    return value.name


def name_everything(model: ir.Model) -> None:
    """Name what has no name, and make all names unique. Changes ``model``."""
    _name_values(model.graph)
    _name_nodes(model.graph)


def is_well_named(graph: ir.Graph) -> bool:
    """Whether ``name_everything`` would change no name."""
    nodes = [node.name for node in every_node(graph)]
    values = [v.name for v in dict.fromkeys(_values(graph)) if not _is_left_out(v)]
    return all(len(set(names)) == len(names) and all(names) for names in (nodes, values))


def _name_nodes(graph: ir.Graph) -> None:
    """Name unnamed nodes after their outputs."""
    nodes = tuple(every_node(graph))
    taken = _Taken(node.name for node in nodes)
    owners: set[str] = set()
    for node in nodes:
        given = node.name
        if given and given not in owners:
            owners.add(given)
            continue
        written = (value.name for value in node.outputs if value.name)
        node.name = taken.unique(given or next(written, node.op_type))
        owners.add(node.name)
        answer_to(node, given)


def _name_values(graph: ir.Graph) -> None:
    values = tuple(dict.fromkeys(_values(graph)))
    taken = _Taken(value.name for value in values)
    owners: set[str] = set()
    for value in values:
        name = value.name
        if name and name not in owners:
            owners.add(name)
        elif not _is_left_out(value):
            value.name = taken.unique(name or _description(value))
            owners.add(value.name)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value, first those whose names others rely on."""
    parts = every_graph(graph)
    for part in parts:
        yield from (*part.inputs, *part.outputs)
    for part in parts:
        for node in part:
            yield from node.outputs
    # Last, since a constant that a pass made up must not take an activation's name.
    for part in parts:
        yield from part.initializers.values()


def _is_left_out(value: ir.Value) -> bool:
    """Whether this is an optional output that nobody asked for: its name is empty on purpose."""
    return value.name == "" and not value.uses() and not value.is_graph_output()


def _description(value: ir.Value) -> str:
    producer = value.producer()
    if producer is None:
        return "value"
    return f"{producer.name or producer.op_type}_output"


class _Taken:
    """Names in use, and how far the numbers after each have got."""

    def __init__(self, names: Iterable[str | None]) -> None:
        self._names = set(names)
        self._numbers: Counter[str] = Counter()

    def unique(self, name: str) -> str:
        """Return ``name`` or a numbered form of it that was free, and take it."""
        candidate = name
        while candidate in self._names:
            self._numbers[name] += 1
            candidate = f"{name}_{self._numbers[name]}"
        self._names.add(candidate)
        return candidate


def operator_name(node: ir.Node) -> str:
    """Return the name of a node's operator in tables: its type, after its domain if it has one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def without_overloads(model: ir.Model) -> ir.Model:
    """Return ``model``, or a copy of it in which each function has a name of its own.

    onnxruntime up to 1.26 runs the last of the functions that differ by their overload alone.
    """
    counts = Counter(key[:2] for key in model.functions)
    if all(count == 1 for count in counts.values()):
        return model
    model = model.clone()
    renamed = {
        key: f"{key[1]}__{key[2]}" for key in model.functions if counts[key[:2]] > 1 and key[2]
    }
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for node in itertools.chain.from_iterable(map(every_node, graphs)):
        if (key := node.op_identifier()) in renamed:
            node.op_type, node.overload = renamed[key], ""
    for key, name in renamed.items():
        function = model.functions.pop(key)
        function.name, function.overload = name, ""
        model.functions[function.identifier()] = function
    return model
