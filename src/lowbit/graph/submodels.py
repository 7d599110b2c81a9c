"""A model cut at a few places: sessions that begin in the middle, on values computed before.

All pieces share one file of weights, so a cut costs no more than the graph itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from lowbit.graph import io
from lowbit.graph.session import Session

if TYPE_CHECKING:
    import onnx

_SMALLEST = 12
"""Fewer nodes than this are not worth a session of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stretch:
    """The model from one node to the outputs.

    Attributes:
        start: The number of the first node.
        share: The share of all nodes that it has.
        session: Runs it. The session of the whole model also gives what crosses the cuts.
        inputs: What must be fed: values that cross the cut, and inputs of the model.
        settings: Inputs that have a default.
    """

    start: int
    share: float
    session: Session
    inputs: tuple[str, ...]
    settings: frozenset[str]


@contextlib.contextmanager
def open_stretches(
    model: ir.Model, pieces: int, watched: Sequence[str], name: str
) -> Iterator[list[Stretch]]:
    """Yield the whole model and its ends, longest first, cut where the fewest values cross.

    The session of the whole model gives the ``watched`` values as well.
    """
    import onnx

    with io.as_file(model) as path:
        whole = onnx.load(path, load_external_data=False)
        starts = _choose_starts(whole.graph, pieces)
        crossing = {start: _crossing(whole.graph, start) for start in starts}
        computed = {output for node in whole.graph.node for output in node.output}
        extra = {v for start in starts for v in crossing[start] if v in computed}
        extra |= {v for v in watched if v in computed}
        stretches = []
        for start in starts:
            piece = _cut(whole, start, crossing[start])
            if start == 0:
                present = {value.name for value in piece.graph.output}
                piece.graph.output.extend(
                    onnx.ValueInfoProto(name=v) for v in sorted(extra - present)
                )
            file = path.with_name(f"from_{start}.onnx")
            file.write_bytes(piece.SerializeToString())
            running = Session(file, threads=1, optimize="none", name=name)
            defaults = {tensor.name for tensor in piece.graph.initializer}
            fed = [value.name for value in piece.graph.input]
            stretches.append(
                Stretch(
                    start=start,
                    share=1 - start / max(1, len(whole.graph.node)),
                    session=running,
                    inputs=tuple(v for v in fed if v not in defaults),
                    settings=frozenset(v for v in fed if v in defaults),
                )
            )
        yield stretches


def _choose_starts(graph: onnx.GraphProto, pieces: int) -> list[int]:
    count = len(graph.node)
    if count < _SMALLEST * pieces:
        return [0]
    width = count // (4 * pieces)
    counts = _crossing_counts(graph)
    found = [0]
    for piece in range(1, pieces):
        middle = piece * count // pieces
        near = range(middle - width, middle + width + 1)
        found.append(min(near, key=lambda i: (counts[i], abs(i - middle))))
    return found


def _crossing_counts(graph: onnx.GraphProto) -> list[int]:
    """Return for each place how many computed values are read on the other side of it."""
    made = {output: i for i, node in enumerate(graph.node) for output in node.output}
    last: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in _reads(node):
            if name in made:
                last[name] = index
    steps = [0] * (len(graph.node) + 2)
    for name, index in last.items():
        steps[made[name] + 1] += 1
        steps[index + 1] -= 1
    return list(itertools.accumulate(steps))


def _crossing(graph: onnx.GraphProto, start: int) -> list[str]:
    """Return the values that nodes from ``start`` on read and do not compute themselves."""
    made = {output for node in graph.node[start:] for output in node.output}
    computed = {output for node in graph.node for output in node.output}
    defaults = {tensor.name for tensor in graph.initializer}
    fed = {value.name for value in graph.input if value.name not in defaults}
    read = dict.fromkeys(name for node in graph.node[start:] for name in _reads(node))
    return [name for name in read if name not in made and (name in computed or name in fed)]


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names a node reads, its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _reads(inner)


def _cut(whole: onnx.ModelProto, start: int, crossing: Sequence[str]) -> onnx.ModelProto:
    import onnx

    piece = onnx.ModelProto()
    piece.CopyFrom(whole)
    graph = piece.graph
    del graph.value_info[:]
    if start == 0:
        return piece
    known = {v.name: v for v in (*whole.graph.value_info, *whole.graph.input)}
    del graph.node[:start]
    read = {name for node in graph.node for name in _reads(node)}
    kept = [tensor for tensor in graph.initializer if tensor.name in read]
    defaults = {tensor.name for tensor in kept}
    inputs = [value for value in whole.graph.input if value.name in defaults]
    del graph.initializer[:], graph.input[:]
    graph.initializer.extend(kept)
    for name in crossing:
        value = onnx.ValueInfoProto(name=name)
        kind = known[name].type.tensor_type.elem_type if name in known else 0
        value.type.tensor_type.elem_type = kind or onnx.TensorProto.FLOAT
        graph.input.append(value)
    graph.input.extend(inputs)
    return piece
