"""Editing a graph: constants, node order, and nodes put in while tensors keep their names.

A graph output keeps its name whatever is put before it, taken out or replaced: that is seen to here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.naming import answer_to, names_of, tensor_name
from lowbit.graph.nesting import every_node, subgraphs

ARITHMETIC = "lowbit.arithmetic"
"""Mark of nodes that belong to the operator before them: a device's own arithmetic."""

REQUANTIZED = "lowbit.requantization"
"""Mark of an Identity between two names of a tensor, one for each format it has."""

SATURATED = "lowbit.saturated"
"""Mark of a Clip at the bounds of the integers that its output becomes: the quantizer does the same."""


def is_constant(value: ir.Value | None) -> bool:
    """Whether the value is an initializer that no feed can replace."""
    return value is not None and value.is_initializer() and not value.is_graph_input()


def is_float_tensor(value: ir.Value) -> bool:
    """Whether the value is a tensor of float32: sequences and optionals of such are none."""
    return value.dtype == ir.DataType.FLOAT and isinstance(value.type, ir.TensorType)


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the data of a constant, or ``None`` for anything else.

    Nothing else keeps it, if it is outside the file: hold on to it no longer than necessary.
    """
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return read_tensor(value.const_value)


def read_tensor(tensor: ir.TensorProtocol) -> NDArray[Any]:
    """Return the data of a tensor, of one outside the file as a copy that nothing else keeps.

    onnx-ir maps the file it is in and keeps the mapping, which adds up to all weights.
    """
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8 or not tensor.size:
        return tensor.numpy()
    dtype = np.dtype(tensor.dtype.numpy()).newbyteorder("<")
    flat = np.fromfile(tensor.path, dtype, tensor.size, offset=tensor.offset or 0)
    return flat.reshape(tensor.shape.numpy())


def constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant without reading it, or ``None`` for anything else."""
    if value is None or not is_constant(value) or value.const_value is None:
        return None
    return tuple(value.const_value.shape.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return a constant of one element as a number, or ``None``."""
    data = constant(value)
    return float(data.reshape(-1)[0]) if data is not None and data.size == 1 else None


def add_constant(graph: ir.Graph, name: str, data: NDArray[Any] | ir.TensorProtocol) -> ir.Value:
    """Register ``data`` under ``name``, or a free name like it, and return its value."""
    name = free_name(graph, name)
    value = ir.val(name, const_value=_tensor(data, name))
    graph.register_initializer(value)
    return value


def _tensor(data: NDArray[Any] | ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    # Not ir.tensor: its checks of protocols take longer than all the rest of emission.
    if isinstance(data, (np.ndarray, np.generic)):
        return ir.Tensor(np.asarray(data), name=name)
    return data


def typed_lists(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes of a new node of which every list is one of integers, and says so.

    To find that out onnx-ir asks each number whether it has all methods of a graph, which takes longer than
    all the rest of the node.
    """
    return {
        name: ir.AttrInt64s(name, value) if isinstance(value, list | tuple) else value
        for name, value in attributes.items()
    }


def replace_constant(
    graph: ir.Graph, node: ir.Node, index: int, data: NDArray[Any] | ir.TensorProtocol
) -> None:
    """Replace a node's constant; other nodes that share the old one keep it. Changes ``graph``."""
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"node {node.name!r} has no input {index} to replace")
    if len(value.uses()) == 1 and not value.is_graph_output():
        value.const_value = _tensor(data, value.name)
        value.dtype = value.const_value.dtype
        value.shape = ir.Shape(value.const_value.shape.numpy())
    else:
        node.replace_input_with(index, add_constant(graph, f"{node.name}_{index}", data))


def free_name(graph: ir.Graph, name: str) -> str:
    """Return ``name``, with a number after it if an initializer has it already."""
    candidate, count = name, 0
    while candidate in graph.initializers:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def insert_after_source(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    """Put a node right after what computes a value that it reads, or first if nothing does.

    onnxruntime runs nodes that nothing else reads in their order in the graph: at its end, they would keep
    all that they read in memory until then. Changes ``graph``.
    """
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)


def only_consumer(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads ``value``, if nothing else does."""
    uses = tuple(value.uses())
    return uses[0].node if len(uses) == 1 and not value.is_graph_output() else None


def node_inputs(node: ir.Node) -> list[ir.Value]:
    """Return the values of its graph that a node reads, those inside its subgraphs included."""
    found = [value for value in node.inputs if value is not None]
    for inner in subgraphs(node):
        for each in every_node(inner):
            found += [v for v in each.inputs if v is not None and v.graph is node.graph]
        found += [v for v in inner.outputs if v.graph is node.graph]
    return found


def is_sorted(graph: ir.Graph) -> bool:
    """Whether every node stands after those it reads from; unknown, so no, with subgraphs."""
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer not in seen:
                return False
        if subgraphs(node):
            return False
        seen.add(node)
    return True


KEPT = "lowbit.kept"
"""Mark of nodes that no rewrite may touch."""


def candidates(graph: ir.Graph) -> tuple[ir.Node, ...]:
    """Return the standard operators' nodes that may be rewritten, in order."""
    return tuple(node for node in graph if node.domain == "" and not node.meta.get(KEPT))


def replace_node(graph: ir.Graph, old: ir.Node, new: Sequence[ir.Node]) -> None:
    """Replace ``old`` by ``new``, whose last node writes the same tensor names."""
    new[-1].name = old.name
    for node in new:
        answer_to(node, *names_of(old))
    graph.insert_before(old, list(new))
    for before, after in zip(old.outputs, new[-1].outputs, strict=True):
        take_over(before, after)
    graph.remove(old, safe=True)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Replace all uses of ``old`` by ``new``, with its name, type and shape."""
    name = old.name
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}_replaced"
    new.name = name


def insert_after(graph: ir.Graph, node: ir.Node, inner_name: str) -> None:
    """Insert a node between a tensor's producer and all its consumers; the tensor keeps its name.

    What the node reads is called ``inner_name`` from then on. Changes ``graph``.
    """
    value, result = node.inputs[0], node.outputs[0]
    producer = value.producer() if value is not None else None
    if value is None or producer is None:
        raise ValueError(f"node {node.name!r} reads nothing that is computed")
    name = tensor_name(value)
    result.type, result.shape = value.type, value.shape
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    node.replace_input_with(0, value)
    value.name, result.name = inner_name, name
    graph.insert_after(producer, node)


def bypass(source: ir.Value, result: ir.Value) -> None:
    """Make all consumers of ``result`` read ``source``; a graph output keeps its name."""
    is_output, name = result.is_graph_output(), result.name
    ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
    source.type, source.shape = source.type or result.type, source.shape or result.shape
    if is_output:
        result.name = f"{name}_replaced"
        source.name = name


def drop_unused_constants(graph: ir.Graph) -> None:
    """Drop constants that nothing reads and no feed can replace. Changes ``graph``."""
    for name, value in tuple(graph.initializers.items()):
        if not (value.uses() or value.is_graph_output() or value.is_graph_input()):
            del graph.initializers[name]


def drop_unused(graph: ir.Graph) -> None:
    """Drop nodes and constants that nothing reads. Changes ``graph``."""
    for node in reversed(tuple(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    drop_unused_constants(graph)


def with_dynamic_batch(model: ir.Model) -> ir.Model:
    """Return a copy whose inputs have a first axis of any size, whatever it was exported with."""
    model = model.clone()
    for value in model.graph.inputs:
        if not value.is_initializer() and value.shape is not None and len(value.shape) > 0:
            value.shape = ir.Shape(["batch", *tuple(value.shape)[1:]])
    for node in model.graph:
        for value in node.outputs:
            # What shapes were inferred from the old batch no longer hold.
            value.shape = None
    return model


Attributes = Mapping[str, int | str | list[int]]
Uses = Iterable[tuple[ir.Node, int]]


class GraphEditor:
    """Inserts nodes into one model, which it owns."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.graph = model.graph
        self.opset = model.opset_imports[""]
        self.values = ir.convenience.create_value_mapping(self.graph)
        self.nodes = {node.name: node for node in self.graph}
        self._taken = {*self.values, *self.nodes}

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Attributes | None = None,
        domain: str = "",
        overload: str = "",
        outputs: Sequence[str] = ("Output",),
    ) -> ir.Node:
        """Return a new node ``name`` whose output is ``name_Output``; of several each has its word."""
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        node = ir.node(
            op,
            inputs,
            attributes or {},
            domain=domain,
            overload=overload,
            name=self.free(name),
            num_outputs=len(outputs),
        )
        for value, word in zip(node.outputs, outputs, strict=True):
            value.name = self.free(f"{name}_{word}")
        return node

    def free(self, name: str) -> str:
        """Return a name that nothing in the graph has, and take it."""
        candidate, count = name, 0
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        self._taken.add(candidate)
        return candidate

    def constant(self, name: str, data: NDArray[np.generic]) -> ir.Value:
        """Store a small constant."""
        return add_constant(self.graph, self.free(name), np.asarray(data))

    def tensor(self, name: str, make: Callable[[str], ir.TensorProtocol]) -> ir.Value:
        """Store the tensor that ``make`` returns for the name it gets."""
        name = self.free(name)
        return add_constant(self.graph, name, make(name))

    def lazy(
        self,
        name: str,
        like: ir.Value,
        dtype: ir.DataType,
        make: Callable[[str], ir.TensorProtocol],
    ) -> ir.Value:
        """Store a tensor of the shape of ``like`` that is made when it is written."""
        shape = like.shape
        if shape is None:
            raise ValueError(f"constant {like.name!r} has no shape")
        return self.tensor(
            name,
            lambda taken: ir.LazyTensor(lambda: make(taken), dtype=dtype, shape=shape, name=taken),
        )

    def set_values(self, value: ir.Value, make: Callable[[], NDArray[np.float32]]) -> None:
        """Give a constant other values of the same shape, made when they are written."""
        tensor = value.const_value
        if tensor is None:
            raise ValueError(f"{value.name!r} has no values to replace")
        name = tensor_name(value)
        value.const_value = ir.LazyTensor(
            lambda: ir.tensor(make(), name=name),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
        )

    def put_after(
        self,
        value: ir.Value,
        nodes: Sequence[ir.Node],
        consumers: Collection[str] | None = None,
    ) -> None:
        """Make all consumers of an activation read the last of ``nodes``, whose first one reads it.

        With ``consumers`` only nodes of these names do, and an output of the graph does not.
        """
        uses = tuple(use for use in value.uses() if use[0] not in nodes)
        # An input that is an output as well stays what it is: both have the same name.
        is_output = value.is_graph_output() and value.producer() is not None
        if consumers is not None:
            uses = tuple(use for use in uses if use[0].name in consumers)
            is_output = False
        result = nodes[-1].outputs[0]
        result.type, result.shape = value.type, value.shape
        producer = value.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], nodes)
        else:
            self.graph.insert_after(producer, nodes)
        for node, index in uses:
            node.replace_input_with(index, result)
        if is_output:
            self._replace_output(value, result)

    def read_through(self, value: ir.Value, uses: Uses, nodes: Sequence[ir.Node]) -> ir.Value:
        """Make ``uses`` of a constant read the last of ``nodes`` instead, and return what it writes."""
        result = nodes[-1].outputs[0]
        result.type, result.shape = value.type, value.shape
        self.graph.insert_before(self.graph[0], nodes)
        for node, index in uses:
            node.replace_input_with(index, result)
        return result

    def join_names(self, mark: str) -> None:
        """Make the consumers of a marked Identity read its input."""
        for node in tuple(self.graph):
            if node.meta.get(mark) and not node.outputs[0].is_graph_output():
                source = node.inputs[0]
                for consumer, index in tuple(node.outputs[0].uses()):
                    consumer.replace_input_with(index, source)
                self.graph.remove(node, safe=True)

    def finish(self) -> ir.Model:
        """Drop what is no longer read, and return the model with its nodes in order."""
        drop_unused_constants(self.graph)
        # Everything was put where it belongs; to find that out is much faster than to sort.
        if not is_sorted(self.graph):
            self.graph.sort()
        return self.model

    def _replace_output(self, value: ir.Value, result: ir.Value) -> None:
        """Keep the name of the graph output: the quantized tensor gets another name."""
        name = tensor_name(value)
        for index, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[index] = result
        value.name = self.free(f"{name}_QuantizeLinear_Input")
        result.name = name
