"""Putting nodes into a graph: names that are free, constants, rewired readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.graph.editing import add_constant, is_sorted
from lowbit.graph.naming import tensor_name

Attributes = Mapping[str, int | str | list[int]]
Uses = Iterable[tuple[ir.Node, int]]


class Writer:
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
        inputs: Sequence[ir.Value],
        name: str,
        attributes: Attributes | None = None,
        domain: str = "",
        overload: str = "",
    ) -> ir.Node:
        """Return a new node ``name`` whose output is ``name_Output``."""
        if domain:
            self.model.opset_imports.setdefault(domain, 1)
        node = ir.node(
            op,
            inputs,
            attributes or {},
            domain=domain,
            overload=overload,
            name=self.free(name),
        )
        node.outputs[0].name = self.free(f"{name}_Output")
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
        """Let a constant have other values of the same shape, made when they are written."""
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

    def put_behind(self, value: ir.Value, nodes: Sequence[ir.Node]) -> None:
        """Let all readers of an activation read the last of ``nodes``, whose first one reads it."""
        uses = tuple(use for use in value.uses() if use[0] not in nodes)
        # An input that is an output as well stays what it is: both have the same name.
        is_output = value.is_graph_output() and value.producer() is not None
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
        """Let ``uses`` of a constant read the last of ``nodes`` instead, and return what it writes."""
        result = nodes[-1].outputs[0]
        result.type, result.shape = value.type, value.shape
        self.graph.insert_before(self.graph[0], nodes)
        for node, index in uses:
            node.replace_input_with(index, result)
        return result

    def join_names(self, mark: str) -> None:
        """Let what reads a marked Identity read what that reads."""
        for node in tuple(self.graph):
            if node.meta.get(mark) and not node.outputs[0].is_graph_output():
                source = node.inputs[0]
                for reader, index in tuple(node.outputs[0].uses()):
                    reader.replace_input_with(index, source)
                self.graph.remove(node, safe=True)

    def finish(self) -> ir.Model:
        """Drop what is no longer read, and return the model with its nodes in order."""
        for name, value in tuple(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]
        # Everything was put where it belongs; to find that out is much faster than to sort.
        if not is_sorted(self.graph):
            self.graph.sort()
        return self.model

    def _replace_output(self, value: ir.Value, result: ir.Value) -> None:
        """Let the graph output keep its name: what is quantized gets another."""
        name = tensor_name(value)
        for index, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[index] = result
        value.name = self.free(f"{name}_QuantizeLinear_Input")
        result.name = name
