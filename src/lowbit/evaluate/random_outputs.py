"""Outputs that a model draws anew in each run, such as the speech of a synthesizer that is fed noise.

Two runs of one model differ there, so the tensors before the noise are compared instead.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from lowbit.graph.naming import tensor_name
from lowbit.graph.nesting import every_node
from lowbit.graph.session import Array, Feed, session
from lowbit.ops.families import RANDOM

_DRAWN = "lowbit.drawn"
"""Of a graph output: two runs on one sample differ."""


def mark_drawn(model: ir.Model, feed: Feed) -> None:
    """Find the outputs in which two runs differ; remembered in the graph. Changes ``model``.

    Only models that draw random numbers are run. Where the noise has no strength, nothing is drawn.
    """
    if not any(node.op_type in RANDOM for node in every_node(model.graph)):
        return
    names = [tensor_name(value) for value in model.graph.outputs]
    with session(model, threads=1) as running:
        first = [_kept(array) for array in running.run(names, feed)]
        second = running.run(names, feed)
        for value, a, b in zip(model.graph.outputs, first, second, strict=True):
            value.meta[_DRAWN] = not _is_same(a, b)


def drawn_outputs(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the outputs that were found to be drawn."""
    return tuple(tensor_name(value) for value in model.graph.outputs if is_drawn(value))


def is_drawn(output: ir.Value) -> bool:
    """Whether an output was found to be drawn."""
    return bool(output.meta.get(_DRAWN))


def before_noise(output: ir.Value) -> list[ir.Value]:
    """Return what is computed without noise, and read together with it on the way to an output."""
    graph = output.graph
    if graph is None:
        return []
    drawn = set(_drawn_values(graph))
    found: dict[ir.Value, None] = {}
    for node in _upstream(output):
        if node.op_type not in RANDOM and any(value in drawn for value in node.outputs):
            plain = (v for v in node.inputs if v is not None and v not in drawn)
            found |= dict.fromkeys(v for v in plain if v.producer() is not None)
    return list(found)


def _drawn_values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that depend on random numbers, of a sorted graph."""
    drawn: set[ir.Value] = set()
    for node in graph:
        if node.op_type in RANDOM or any(value in drawn for value in node.inputs):
            drawn |= set(node.outputs)
            yield from node.outputs


def _upstream(output: ir.Value) -> Iterator[ir.Node]:
    seen: set[ir.Node] = set()
    stack = [output]
    while stack:
        node = stack.pop().producer()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack += [value for value in node.inputs if value is not None]


def _kept(array: Array) -> Array:
    return array.copy() if isinstance(array, np.ndarray) else array


def _is_same(a: Array, b: Array) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
