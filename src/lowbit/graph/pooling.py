"""Nodes that reduce feature maps inside the graph: their results become outputs of the graph.

Returning a large map costs more than computing it.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import insert_after_source
from lowbit.graph.naming import tensor_name

_HIGHEST, _MEAN, _LOWEST = "lowbit/highest", "lowbit/mean", "lowbit/lowest"
_MEAN_SQUARE = "lowbit/mean_square"
_SPATIAL, _AXES_AS_INPUT = (2, 3), 18
# Numbers of one sample's map from which on it is not handed out as a whole.
_LARGE = 1 << 17
_BYTES = 4
BLOCK = 16
"""Channels of a block in onnxruntime are 8 or 16, by processor."""


def poolable(graph: ir.Graph) -> dict[str, int]:
    """Return the positions of each channel of the feature maps whose size is known."""
    found: dict[str, int] = {}
    for node in graph:
        for value in node.outputs:
            # Sizes that differ from sample to sample would need a weighted mean.
            if value.dtype != ir.DataType.FLOAT or value.shape is None or len(value.shape) != 4:
                continue
            height, width = value.shape[2], value.shape[3]
            if isinstance(height, int) and isinstance(width, int) and height * width:
                found[tensor_name(value)] = height * width
    return found


def large_maps(graph: ir.Graph, numbers: int | None = None) -> frozenset[str]:
    """Return the feature maps known to have at least ``numbers`` elements; half a megabyte if not given."""
    least = _LARGE if numbers is None else numbers
    names = poolable(graph)
    values = (value for node in graph for value in node.outputs if value.name in names)
    return frozenset(tensor_name(v) for v in values if math.prod(size_of_one(v) or [0]) >= least)


def bytes_of_maps(graph: ir.Graph, names: Collection[str]) -> float:
    """Return how much memory the named maps of one sample take: no limit if the size of one is not known."""
    maps = [v for v in _values(graph, names).values() if v.shape is not None and len(v.shape) == 4]
    sizes = [size_of_one(value) for value in maps]
    return float(sum(_BYTES * math.prod(size) for size in sizes)) if all(sizes) else math.inf


def whole_blocks(graph: ir.Graph) -> frozenset[str]:
    """Return the maps whose channels onnxruntime can have in blocks on every processor."""
    values = (value for node in graph for value in node.outputs)
    sizes = ((value, size_of_one(value)) for value in values)
    return frozenset(tensor_name(value) for value, size in sizes if size and size[1] % BLOCK == 0)


def add_pools(
    graph: ir.Graph, names: Collection[str], unbounded: Collection[str] = frozenset()
) -> None:
    """Make the largest value and the mean of each channel of the named maps outputs of a graph.

    Of those ``unbounded`` the smallest values are pooled as well. Changes ``graph``.
    """
    for name, value in _values(graph, names).items():
        add_output(graph, value, ir.node("GlobalMaxPool", [value], name=highest_of(name)))
        add_output(graph, value, ir.node("GlobalAveragePool", [value], name=mean_of(name)))
        if name in unbounded:
            add_output(graph, value, _smallest(graph, value, lowest_of(name)))


def add_maxima(graph: ir.Graph, names: Collection[str]) -> None:
    """Make the largest value of each channel of the named maps outputs of a graph, which is changed."""
    for name, value in _values(graph, names).items():
        add_output(graph, value, ir.node("GlobalMaxPool", [value], name=highest_of(name)))


def add_mean_squares(graph: ir.Graph, names: Collection[str]) -> None:
    """Make the mean square of each channel of the named maps outputs of a graph, which is changed."""
    for name, value in _values(graph, names).items():
        output = mean_square_of(name)
        squares = ir.node("Mul", [value, value], name=f"{output}/squares")
        squares.outputs[0].name = squares.name
        insert_after_source(graph, value, squares)
        mean = ir.node("GlobalAveragePool", [squares.outputs[0]], name=output)
        add_output(graph, squares.outputs[0], mean)


def _values(graph: ir.Graph, names: Collection[str]) -> dict[str, ir.Value]:
    return {tensor_name(v): v for node in graph for v in node.outputs if v.name in names}


def _smallest(graph: ir.Graph, value: ir.Value, name: str) -> ir.Node:
    """Return a node that gives the smallest number of each channel."""
    if graph.opset_imports.get("", 0) < _AXES_AS_INPUT:
        return ir.node("ReduceMin", [value], {"axes": _SPATIAL}, name=name)
    return ir.node("ReduceMin", [value, add_numbers(graph, f"{name}/axes", *_SPATIAL)], name=name)


def add_output(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    """Insert a node after the producer of a value, and add its output to those of the graph."""
    found = node.outputs[0]
    found.name, found.dtype = node.name, ir.DataType.FLOAT
    insert_after_source(graph, value, node)
    graph.outputs.append(found)


def schedule_early(graph: ir.Graph, given: int) -> None:
    """Order the nodes of all outputs after the ``given`` ones so that onnxruntime runs them early.

    With channels in blocks it makes new nodes, and runs them as they were made: depth first from the nodes
    that nothing reads, the last of the file first. So what looks at the first map goes last. Right after
    its map, it would be made, and run, after all the rest, and all maps would wait in memory. Whatever does
    not take blocks runs after the rest in any case. Changes ``graph``.
    """
    sizes = poolable(graph)
    ends = [v for v in graph.outputs[:given] if not v.uses() and v.name in sizes]
    # An activation that nothing reads becomes one with its layer, and that comes last in the file.
    add_maxima(graph, {tensor_name(value) for value in ends})
    looking = {value.producer() for value in graph.outputs[given:]}
    nodes = [node for node in graph if node in looking]
    graph.remove(nodes)
    graph.extend(reversed(nodes))


def size_of_one(value: ir.Value) -> list[int]:
    """Return the shape of a map for a batch of one; no size at all if channels are not known."""
    sizes = [] if value.shape is None else [size for size in value.shape if isinstance(size, int)]
    return [1, *sizes[-3:]] if len(sizes) >= 3 else []


def add_numbers(graph: ir.Graph, name: str, *numbers: int) -> ir.Value:
    """Return integers as a new constant of a graph, which is changed."""
    value = ir.Value(name=name, const_value=ir.tensor(np.array(numbers, np.int64), name=name))
    graph.initializers[name] = value
    return value


def highest_of(name: str) -> str:
    """Return what the largest numbers of a map are called."""
    return f"{name}/{_HIGHEST}"


def mean_of(name: str) -> str:
    """Return what the means of a map are called."""
    return f"{name}/{_MEAN}"


def lowest_of(name: str) -> str:
    """Return what the smallest numbers of a map are called."""
    return f"{name}/{_LOWEST}"


def mean_square_of(name: str) -> str:
    """Return what the mean squares of a map are called."""
    return f"{name}/{_MEAN_SQUARE}"
