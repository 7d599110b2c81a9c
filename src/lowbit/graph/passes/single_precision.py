"""Compute in float32 whatever float type the file uses, and keep that type at the boundary.

A float16, bfloat16 or float64 model gets a Cast behind each such input and before each such
output; everything between is float32, so that Casts from one float type to another do nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.constants import read_tensor
from lowbit.graph.names import tensor_name
from lowbit.graph.passes.infer_types import infer_types

_OTHER = frozenset((ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16))
_FLOATS = _OTHER | {ir.DataType.FLOAT}

# Attributes that hold the element type of what a node writes.
_TYPE_ATTRIBUTES = ("to", "dtype", "output_datatype")


def single_precision(model: ir.Model) -> None:
    """Turn every other float type inside the graph to float32. Changes ``model``."""
    graph = model.graph
    if not _is_concerned(model):
        return
    inputs = [v for v in graph.inputs if v.dtype in _OTHER]
    outputs = [(v, v.dtype) for v in graph.outputs if v.dtype in _OTHER and v not in inputs]
    _refuse_sequences([*graph.inputs, *graph.outputs])
    infer_types(model)
    idle = [node for node in graph if _is_float_to_float(node)]
    for part in (graph, *graph.subgraphs()):
        _convert(part, keep=inputs)
    for node in idle:
        node.op_type = "Identity"
        node.attributes.clear()
    for value in inputs:
        _cast_input(graph, value)
    for value, dtype in outputs:
        if dtype is not None:
            _cast_output(graph, value, dtype)


def _is_concerned(model: ir.Model) -> bool:
    graphs = tuple(model.graphs())
    values = (v for part in graphs for v in (*part.inputs, *part.outputs))
    tensors = (v.const_value for part in graphs for v in part.initializers.values())
    return (
        any(value.dtype in _OTHER for value in values)
        or any(tensor is not None and tensor.dtype in _OTHER for tensor in tensors)
        or any(
            _names_other(a) for node in model.graph.all_nodes() for a in node.attributes.values()
        )
    )


def _names_other(attribute: ir.Attr) -> bool:
    if attribute.type == ir.AttributeType.INT:
        return attribute.name in _TYPE_ATTRIBUTES and attribute.value in _OTHER
    return attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in _OTHER


def _refuse_sequences(boundary: list[ir.Value]) -> None:
    for value in boundary:
        if value.dtype in _OTHER and not isinstance(value.type, ir.TensorType):
            raise ModelError(
                f"{value.name!r} is {value.type}: sequences of that type cannot be kept at the "
                "model's boundary; export the model in float32"
            )


def _is_float_to_float(node: ir.Node) -> bool:
    """Whether a Cast has nothing left to do once all floats are of one type."""
    if node.op_type != "Cast" or node.domain != "" or not node.inputs or node.inputs[0] is None:
        return False
    source = node.inputs[0]
    tensor = source.const_value
    dtype = source.dtype if tensor is None else tensor.dtype
    return dtype in _FLOATS and node.attributes.get_int("to", 0) in _FLOATS


def _convert(graph: ir.Graph, keep: list[ir.Value]) -> None:
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.dtype in _OTHER:
            value.const_value = _as_single(tensor)
            value.type = ir.TensorType(ir.DataType.FLOAT)
    for value in graph.inputs:
        if value not in keep:
            _retype(value)
    for node in graph:
        for attribute in tuple(node.attributes.values()):
            if _names_other(attribute):
                node.attributes[attribute.name] = _single_attribute(attribute)
        for value in node.outputs:
            _retype(value)


def _as_single(tensor: ir.TensorProtocol) -> ir.LazyTensor:
    """Return the tensor in float32, converted when it is read: it may be large, and on disk."""
    return ir.LazyTensor(
        lambda: ir.tensor(read_tensor(tensor).astype(np.float32), name=tensor.name),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )


def _single_attribute(attribute: ir.Attr) -> ir.Attr:
    if attribute.type == ir.AttributeType.INT:
        return ir.AttrInt64(attribute.name, int(ir.DataType.FLOAT))
    return ir.AttrTensor(attribute.name, _as_single(attribute.value))


def _retype(value: ir.Value) -> None:
    if value.dtype in _OTHER and value.type is not None:
        value.type = _single_type(value.type)


def _single_type(kind: ir.TypeProtocol) -> ir.TypeProtocol:
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_single_type(kind.elem_type))
    return ir.TensorType(ir.DataType.FLOAT)


def _cast_input(graph: ir.Graph, value: ir.Value) -> None:
    uses = tuple(value.uses())
    cast = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=f"{value.name}_float")
    result = cast.outputs[0]
    result.name, result.shape = f"{value.name}_float", value.shape
    result.type = ir.TensorType(ir.DataType.FLOAT)
    for user, index in uses:
        user.replace_input_with(index, result)
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
