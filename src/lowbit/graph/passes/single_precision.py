"""Compute in float32 whatever float type the file uses, and keep that type at the boundary.

A float16 or float64 model gets a Cast behind each such input and before each such output;
everything between is float32.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.names import tensor_name

_OTHER = (ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


def single_precision(model: ir.Model) -> None:
    """Turn every other float type inside the graph to float32. Changes ``model``."""
    graph = model.graph
    if not _is_concerned(model):
        return
    boundary_inputs = [v for v in graph.inputs if v.dtype in _OTHER]
    boundary_outputs = [(v, v.dtype) for v in graph.outputs if v.dtype in _OTHER]
    for part in (graph, *graph.subgraphs()):
        _convert_initializers(part)
        for node in part:
            _convert_attributes(node)
            for value in node.outputs:
                _retype(value)
    for value in boundary_inputs:
        _cast_input(graph, value)
    for value, dtype in boundary_outputs:
        if dtype is not None:
            _cast_output(graph, value, dtype)


def _is_concerned(model: ir.Model) -> bool:
    graph = model.graph
    values = [*graph.inputs, *graph.outputs]
    parts = (graph, *graph.subgraphs())
    return any(v.dtype in _OTHER for v in values) or any(
        v.const_value is not None and v.const_value.dtype in _OTHER
        for part in parts
        for v in part.initializers.values()
    )


def _convert_initializers(graph: ir.Graph) -> None:
    for name, value in tuple(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype not in _OTHER:
            continue
        value.const_value = ir.LazyTensor(
            lambda tensor=tensor, name=name: ir.tensor(
                tensor.numpy().astype(np.float32), name=name
            ),
            dtype=ir.DataType.FLOAT,
            shape=tensor.shape,
            name=name,
        )
        value.type = ir.TensorType(ir.DataType.FLOAT)


def _convert_attributes(node: ir.Node) -> None:
    to = node.attributes.get("to") if node.op_type == "Cast" else node.attributes.get("dtype")
    if to is not None and to.type == ir.AttributeType.INT and to.value in set(_OTHER):
        node.attributes[to.name] = ir.AttrInt64(to.name, int(ir.DataType.FLOAT))
    value = node.attributes.get("value")
    if value is not None and value.type == ir.AttributeType.TENSOR and value.value.dtype in _OTHER:
        data = value.value.numpy().astype(np.float32)
        node.attributes["value"] = ir.AttrTensor("value", ir.tensor(data))


def _retype(value: ir.Value) -> None:
    if value.dtype in _OTHER:
        value.type = ir.TensorType(ir.DataType.FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value) -> None:
    cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=f"{value.name}_float")
    cast.outputs[0].name = f"{value.name}_float"
    cast.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    cast.outputs[0].shape = value.shape
    value.replace_all_uses_with(cast.outputs[0])
    cast.replace_input_with(0, value)
    if graph.num_nodes():
        graph.insert_before(graph[0], cast)
    else:
        graph.append(cast)


def _cast_output(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> None:
    name = tensor_name(value)
    cast = ir.node("Cast", [value], {"to": int(dtype)}, name=f"{name}_cast")
    result = cast.outputs[0]
    value.name = f"{name}_float"
    result.name, result.type, result.shape = name, ir.TensorType(dtype), value.shape
    value.type = ir.TensorType(ir.DataType.FLOAT)
    graph.append(cast)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = result
