"""Large models run as sub-models, one after another, so that memory is that of one sub-model.

onnxruntime keeps all weights of a session in memory, some of them twice, and what it does to a graph
before the first run grows faster than the number of its nodes. So a model with more weights or nodes
than a limit is never opened as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import onnx_ir as ir

from lowbit.graph.editing import node_inputs
from lowbit.graph.layerwise_run import REPEATED, LayerwiseRun, varying_values
from lowbit.graph.memory import release_memory
from lowbit.graph.naming import is_well_named, tensor_name
from lowbit.graph.session import Array, Feed, Optimize, with_outputs
from lowbit.graph.store import Store, open_store
from lowbit.parallel import ordered_map

LARGE_BYTES = 112 << 20
"""Models with more constants than this are run in parts."""

LARGE_NODES = 4000
"""Models with more nodes than this are run in parts."""

_T = TypeVar("_T")

_PART_BYTES = LARGE_BYTES // 3
# Opening parts of a few hundred nodes takes least: onnxruntime's time grows faster than their number,
# and below that what is done for each part outweighs it.
_PART_NODES = LARGE_NODES // 16


def is_large(model: ir.Model) -> bool:
    """Whether a model is to be run in parts.

    One whose constants can be fed is not: a part would not know which of them were. Nor is one with
    sequences, which cannot wait between two parts.
    """
    graph = model.graph
    if len(graph) <= LARGE_NODES and _bytes(graph.initializers.values()) <= LARGE_BYTES:
        return False
    if any(value.is_initializer() for value in graph.inputs):
        return False
    return not any("Sequence" in node.op_type or "Optional" in node.op_type for node in graph)


class PartwiseRun:
    """The run of a large model on some samples, part by part; each part takes all samples."""

    def __init__(
        self,
        model: ir.Model,
        names: Sequence[str],
        store: Store,
        *,
        optimize: Optimize = "none",
        name: str,
    ) -> None:
        """Plan the run; ``names`` are the values wanted."""
        model = _well_named(model)
        steps = _steps(model.graph, names)
        wanted = set(names)
        self.wanted = [tuple(name for name in step if name in wanted) for step in steps]
        self._run = LayerwiseRun(model, steps, store, optimize=optimize, name=name)

    def __len__(self) -> int:
        """Return the number of parts."""
        return len(self.wanted)

    def begin(self, part: int) -> None:
        """Open a part, instead of the one before."""
        self._run.begin(part, {})

    def run(self, part: int, sample: int, feed: Feed | None) -> dict[str, Array]:
        """Return the values of one sample that are wanted of the part that has begun.

        ``feed`` is read by the first part only. Values are onnxruntime's: copy what is to be kept.
        """
        found = self._run.run(sample, feed)
        return {name: found[name] for name in self.wanted[part]}

    def end(self) -> None:
        """Close the last part."""
        self._run.end()
        release_memory()


def run_in_parts(
    model: ir.Model,
    names: Sequence[str],
    feeds: Iterable[Feed],
    keep: Callable[[int, str, Array], _T],
    *,
    optimize: Optimize = "none",
    name: str,
) -> list[dict[str, _T]]:
    """Return what a large model gives for each sample.

    ``keep`` returns what is kept of a value, given the number of the sample, its name and itself.
    """
    first: Iterator[tuple[int, Feed | None]] = enumerate(feeds)
    kept: list[dict[str, _T]] = []
    with open_store() as store:
        run = PartwiseRun(model, names, store, optimize=optimize, name=name)
        for part in range(len(run)):
            run.begin(part)

            def take(item: tuple[int, Feed | None], part: int = part) -> dict[str, _T]:
                values = run.run(part, *item)
                return {name: keep(item[0], name, array) for name, array in values.items()}

            items = first if part == 0 else ((index, None) for index in range(len(kept)))
            for index, values in enumerate(ordered_map(take, items)):
                if part == 0:
                    kept.append({})
                kept[index] |= values
        run.end()
    return kept


def check_parts(model: ir.Model, feed: Feed) -> None:
    """Raise unless every part of a large quantized model loads and runs with every optimization.

    It is run because only a run tells the types of what passes from one part to the next.
    """
    names = [tensor_name(value) for value in model.graph.outputs]
    name = "the quantized model"
    run_in_parts(model, names, [feed], lambda *_: None, optimize="all", name=name)


def _well_named(model: ir.Model) -> ir.Model:
    """Return a model whose names are unique, as onnxruntime wants them: a copy if it takes one."""
    return model if is_well_named(model.graph) else with_outputs(model, ())


def _steps(graph: ir.Graph, names: Sequence[str]) -> list[list[str]]:
    """Return what each part gives: the values wanted of it, and those that later parts read.

    Only nodes that depend on an input are shared out. What is computed from constants alone, such
    as dequantized weights, is computed by the part that reads it.
    """
    inputs = {tensor_name(v) for v in graph.inputs if not v.is_initializer()}
    varying = varying_values(graph, inputs)
    nodes = [n for n in graph if any(value.name in varying for value in n.outputs)]
    # Where all constants are few none has to be counted, which takes longer than the rest of this.
    by_size = _bytes(graph.initializers.values()) > _PART_BYTES
    parts = list(_parts(nodes, varying, by_size=by_size))
    made_in = {v.name: index for index, part in enumerate(parts) for n in part for v in n.outputs}
    last_read: dict[ir.Value, int] = {}
    for index, part in enumerate(parts):
        for node in part:
            for value in node_inputs(node):
                if value.name in varying:
                    last_read[value] = index
    steps: list[dict[str, None]] = [{} for _ in range(max(1, len(parts)))]
    for name in names:
        # Inputs, and what follows from constants alone, can be had from any part.
        steps[made_in.get(name, 0)][name] = None
    for value, index in last_read.items():
        crossing = _before_repeated(value)
        if made_in.get(crossing, index) < index:
            steps[made_in[crossing]][crossing] = None
    return [list(step) for step in steps]


def _before_repeated(value: ir.Value) -> str:
    """Return what is kept of a value that a later part reads: what it is cheaply computed from."""
    producer = value.producer()
    while producer is not None and producer.op_type in REPEATED and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return tensor_name(value)


def _parts(
    nodes: Sequence[ir.Node], varying: set[str], *, by_size: bool
) -> Iterator[list[ir.Node]]:
    """Yield the nodes of each part, in order: as many as the limits allow, one at least."""
    part: list[ir.Node] = []
    counted: set[ir.Value] = set()
    size = 0
    for node in nodes:
        constants = _constants(node, varying) - counted if by_size else set()
        more = _bytes(constants)
        full = size + more > _PART_BYTES or len(part) >= _PART_NODES
        if part and full and not _ends_pair(node):
            yield part
            part, counted, size = [], set(), 0
            constants = _constants(node, varying) if by_size else constants
            more = _bytes(constants)
        part.append(node)
        counted |= constants
        size += more
    if part:
        yield part


def _ends_pair(node: ir.Node) -> bool:
    """Whether a node may read a type that no array has, such as bfloat16: from the node before it."""
    return node.op_type == "Cast" or node.op_type.endswith("DequantizeLinear")


def _constants(node: ir.Node, varying: set[str]) -> set[ir.Value]:
    """Return the constants that a node depends on with no input of the model between."""
    found: set[ir.Value] = set()
    pending = [value for value in node_inputs(node) if value.name not in varying]
    while pending:
        value = pending.pop()
        if value in found:
            continue
        producer = value.producer()
        if producer is not None:
            pending += node_inputs(producer)
        found.add(value)
    return found


def _bytes(values: Iterable[ir.Value]) -> int:
    """Return how much memory constants take when they are computed with, as single-precision floats."""
    tensors = (value.const_value for value in values)
    return sum(max(t.nbytes, 4 * t.size) for t in tensors if t is not None)
