"""Sub-models: parts of a graph that are run by themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph import io
from lowbit.graph.editing import node_inputs
from lowbit.graph.message import part_message
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Optimize, Session
from lowbit.graph.tensors import tensors_size

_SMALLEST = 12
"""Fewer nodes than this are not worth a session of their own."""

_LARGEST_MESSAGE = 4 << 20
"""Sub-models with more constants than this are handed to onnxruntime as files."""

_NOTHING: Mapping[str, Array] = MappingProxyType({})


class Extractor:
    """Cuts parts out of one model, which must not change meanwhile.

    Names and order are looked up once, so that a part costs no more than its own nodes.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self.values = ir.convenience.create_value_mapping(model.graph, include_subgraphs=False)
        self._positions = {node: index for index, node in enumerate(model.graph)}

    def model(
        self,
        inputs: Mapping[str, np.dtype[Any] | None],
        outputs: Sequence[str],
        constants: Mapping[str, Array] = _NOTHING,
        defaults: Iterable[str] = (),
    ) -> ir.Model:
        """Return the part of the model that computes ``outputs`` from ``inputs``.

        ``inputs`` have types where they are known: a model need not say them of inner values.
        ``constants`` are values that are taken as given, computed or constant in the model.
        ``defaults`` are inputs of the model that need not be fed; they stay so.
        """
        defaults = list(defaults)
        graph = self._view([*inputs, *constants, *defaults], outputs).clone()
        taken = {tensor_name(value): value for value in graph.inputs}
        graph.inputs[:] = [taken[name] for name in (*inputs, *defaults)]
        for name, dtype in inputs.items():
            if dtype is not None:
                taken[name].type = ir.TensorType(ir.DataType.from_numpy(dtype))
            elif taken[name].type is None:
                taken[name].type = ir.TensorType(ir.DataType.FLOAT)
        for name, array in constants.items():
            taken[name].const_value = ir.tensor(np.ascontiguousarray(array), name=name)
        for name in (*constants, *defaults):
            graph.initializers[name] = taken[name]
        functions = tuple(self._model.functions.values())
        return ir.Model(graph, ir_version=self._model.ir_version, functions=functions)

    def session(
        self,
        inputs: Mapping[str, np.dtype[Any] | None],
        outputs: Sequence[str],
        constants: Mapping[str, Array] = _NOTHING,
        *,
        threads: int = 1,
        optimize: Optimize = "none",
        device: str = "cpu",
        name: str = "a sub-model",
    ) -> Session:
        """Return a session on the part that computes ``outputs`` from ``inputs``."""
        message = self._message(inputs, outputs, constants)
        if message is not None:
            return Session(message, threads=threads, optimize=optimize, device=device, name=name)
        part = self.model(inputs, outputs, constants)
        if tensors_size(part) < _LARGEST_MESSAGE:
            data = io.to_proto(part).SerializeToString()
            return Session(data, threads=threads, optimize=optimize, device=device, name=name)
        # In a message weights would be in memory three times before the session has them.
        stack = contextlib.ExitStack()
        path = stack.enter_context(io.as_file(part))
        return Session(
            path, threads=threads, optimize=optimize, device=device, name=name, cleanup=stack.close
        )

    def _message(
        self,
        inputs: Mapping[str, np.dtype[Any] | None],
        outputs: Sequence[str],
        constants: Mapping[str, Array],
    ) -> bytes | None:
        """Return a part as a message, written without a copy; ``None`` if it takes more than that.

        Parts of a graph of many nodes are cut out over and over: copies of them took most of a run.
        """
        view = self._view([*inputs, *constants], outputs)
        own = [value for value in view.initializers.values() if value.name not in constants]
        tensors = [value.const_value for value in own]
        plain = all(
            isinstance(t, (ir.Tensor, ir.LazyTensor, ir.TensorProtoTensor)) for t in tensors
        )
        size = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        if self._model.functions or not plain or size >= _LARGEST_MESSAGE or _holds_more(view):
            return None
        given = [self.values[name] for name in inputs]
        part = _view_like(view, given, view.outputs, tuple(view), own)
        return part_message(part, inputs, constants, self._model.ir_version)

    def _view(self, inputs: Sequence[str], outputs: Sequence[str]) -> ir.GraphView:
        for name in (*inputs, *outputs):
            if name not in self.values:
                raise ValueError(f"value {name!r} not found in the model")
        given, wanted = ([self.values[name] for name in names] for names in (inputs, outputs))
        nodes, constants = self._between(given, wanted)
        ordered = sorted(nodes, key=self._positions.__getitem__)
        return _view_like(self._model.graph, given, wanted, ordered, constants)

    def _between(
        self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value]
    ) -> tuple[set[ir.Node], list[ir.Value]]:
        """Return the nodes that compute ``outputs`` from ``inputs``, and the constants they read."""
        constants = [value for value in inputs if value.is_initializer()]
        nodes: set[ir.Node] = set()
        seen, pending = set(inputs), list(outputs)
        missing: list[str] = []
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            producer = value.producer()
            if value.is_initializer():
                constants.append(value)
            elif producer is None:
                missing.append(tensor_name(value))
            elif producer not in nodes:
                nodes.add(producer)
                pending += node_inputs(producer)
        if missing:
            raise ValueError(
                f"values that the sub-model reads are required but not provided: "
                f"{', '.join(sorted(missing))}"
            )
        return nodes, constants


def _view_like(
    graph: ir.Graph | ir.GraphView,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    nodes: Sequence[ir.Node],
    constants: Sequence[ir.Value],
) -> ir.GraphView:
    return ir.GraphView(
        inputs,
        outputs,
        nodes=nodes,
        initializers=constants,
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )


_TENSORS_AND_GRAPHS = (
    ir.AttributeType.TENSOR,
    ir.AttributeType.TENSORS,
    ir.AttributeType.GRAPH,
    ir.AttributeType.GRAPHS,
)


def _holds_more(view: ir.GraphView) -> bool:
    """Whether a node has tensors or graphs as attributes."""
    return any(a.type in _TENSORS_AND_GRAPHS for node in view for a in node.attributes.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Tail:
    """The model from one node to the outputs.

    Attributes:
        start: The number of the first node.
        share: The share of all nodes that it has.
        session: Runs it. The session of the whole model also gives the inputs of all tails.
        inputs: What must be fed: values computed before, and inputs of the model.
        defaults: Inputs that need not be fed.
    """

    start: int
    share: float
    session: Session
    inputs: tuple[str, ...]
    defaults: frozenset[str]


@contextlib.contextmanager
def open_tails(
    model: ir.Model, count: int, observed: Sequence[str], name: str, *, threads: int = 1
) -> Iterator[list[Tail]]:
    """Yield the whole model and its tails, longest first, begun where the fewest values cross.

    Each runs a sample on so many ``threads``. The session of the whole model gives the ``observed`` values as well. All tails share one file
    of weights, so each costs no more than the graph itself.
    """
    with io.as_file(model) as path:
        whole = io.load(path)
        graph = whole.graph
        nodes = list(graph)
        starts = _choose_starts(nodes, count)
        reads = {start: _reads_before(graph, nodes, start) for start in starts}
        computed = {tensor_name(v) for node in nodes for v in node.outputs if v.name}
        extra = [v for start in starts for v in reads[start] if v in computed]
        extra += [v for v in observed if v in computed]
        outputs = [tensor_name(value) for value in graph.outputs]
        fed = [tensor_name(v) for v in graph.inputs if not v.is_initializer()]
        defaults = {tensor_name(v) for v in graph.inputs if v.is_initializer()}
        tails, extractor = [], Extractor(whole)
        for start in starts:
            inputs = [v for v in reads[start] if v in computed or v in fed] if start else fed
            wanted = outputs if start else list(dict.fromkeys((*outputs, *extra)))
            settable = [v for v in reads[start] if v in defaults]
            part = extractor.model(dict.fromkeys(inputs), wanted, defaults=settable)
            session = _open(part, path.with_name(f"from_{start}.onnx"), name, threads)
            share = 1 - start / max(1, len(nodes))
            tails.append(Tail(start, share, session, tuple(inputs), frozenset(settable)))
        yield tails


def _open(part: ir.Model, path: pathlib.Path, name: str, threads: int) -> Session:
    path.write_bytes(ir.to_proto(part).SerializeToString())
    return Session(path, threads=threads, optimize="none", name=name, keep_memory=False)


def _choose_starts(nodes: Sequence[ir.Node], count: int) -> list[int]:
    if len(nodes) < _SMALLEST * count:
        return [0]
    width = len(nodes) // (4 * count)
    crossing = _crossing_counts(nodes)
    found = [0]
    for number in range(1, count):
        middle = number * len(nodes) // count
        near = range(middle - width, middle + width + 1)
        found.append(min(near, key=lambda i: (crossing[i], abs(i - middle))))
    return found


def _crossing_counts(nodes: Sequence[ir.Node]) -> list[int]:
    """Return for each node how many values computed before it are read from it on."""
    made = {value: index for index, node in enumerate(nodes) for value in node.outputs}
    last: dict[ir.Value, int] = {}
    for index, node in enumerate(nodes):
        for value in node_inputs(node):
            if value in made:
                last[value] = index
    changes = [0] * (len(nodes) + 2)
    for value, index in last.items():
        changes[made[value] + 1] += 1
        changes[index + 1] -= 1
    return list(itertools.accumulate(changes))


def _reads_before(graph: ir.Graph, nodes: Sequence[ir.Node], start: int) -> list[str]:
    """Return the values that nodes from ``start`` on read and do not compute themselves.

    Outputs that are computed before are among them: a tail hands them on.
    """
    made = {value for node in nodes[start:] for value in node.outputs}
    read = dict.fromkeys(value for node in nodes[start:] for value in node_inputs(node))
    return [
        tensor_name(value) for value in (read | dict.fromkeys(graph.outputs)) if value not in made
    ]
