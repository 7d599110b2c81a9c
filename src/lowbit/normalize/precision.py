"""Float types: everything inside float32, and the way back from 16-bit floats and blocks.

A float16, bfloat16 or float64 model gets a Cast after each such input and before each such output;
everything between is float32, so that Casts from one float type to another do nothing. Constants are
converted when they are written, so that memory holds one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.errors import ModelError
from lowbit.graph.editing import (
    add_constant,
    constant,
    insert_after,
    is_constant,
    read_tensor,
    scalar,
)
from lowbit.graph.naming import tensor_name
from lowbit.graph.nesting import every_node
from lowbit.graph.onnx_passes import infer_types
from lowbit.numerics.formats import FloatFormat
from lowbit.ops.block_attributes import block_attributes, block_spec
from lowbit.ops.quantizing import AMD_DOMAIN, ROUND_BLOCKS

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
    bitwise = [(node, *_bit_types(node)) for node in every_node(graph) if _is_bitwise(node)]
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
    for node, source, result in bitwise:
        _cast_around(node, source, result)


def _is_bitwise(node: ir.Node) -> bool:
    """Whether a node reads the bits of numbers, so that their type is not ours to change."""
    return node.op_type == "BitCast" and node.domain == ""


def _bit_types(node: ir.Node) -> tuple[ir.DataType | None, ir.DataType]:
    source = node.inputs[0]
    return (None if source is None else source.dtype), ir.DataType(node.attributes.get_int("to", 0))


def _cast_around(node: ir.Node, source: ir.DataType | None, result: ir.DataType) -> None:
    """Keep the types that a node reads and writes, between Casts from and to float32."""
    part, value = node.graph, node.inputs[0]
    if not isinstance(part, ir.Graph) or value is None:
        return
    node.attributes["to"] = ir.AttrInt64("to", int(result))
    if source in _OTHER:
        before = ir.node("Cast", [value], {"to": int(source)}, name=f"{node.name}_source")
        before.outputs[0].name = f"{node.name}_source"
        before.outputs[0].type, before.outputs[0].shape = ir.TensorType(source), value.shape
        part.insert_before(node, before)
        node.replace_input_with(0, before.outputs[0])
    if result in _OTHER:
        after = ir.node("Cast", node.outputs, {"to": int(ir.DataType.FLOAT)})
        insert_after(part, after, f"{tensor_name(node.outputs[0])}_bits")
        node.outputs[0].type = ir.TensorType(result)


def _is_concerned(model: ir.Model) -> bool:
    graphs = tuple(model.graphs())
    values = (v for part in graphs for v in (*part.inputs, *part.outputs))
    tensors = (v.const_value for part in graphs for v in part.initializers.values())
    return (
        any(value.dtype in _OTHER for value in values)
        or any(tensor is not None and tensor.dtype in _OTHER for tensor in tensors)
        or any(
            _names_other(a) for node in every_node(model.graph) for a in node.attributes.values()
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


_HALF = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_CASTABLE = _HALF | {ir.DataType.FLOAT}

Values = NDArray[Any]


def full_precision(model: ir.Model) -> None:
    """Bring a model in 16-bit floats or blocks to float32, ends included. Changes ``model``."""
    # Which Casts are between floats, a file need not say.
    infer_types(model)
    graph = model.graph
    for node in tuple(graph):
        step = _step(node)
        if step is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source is None:
            continue
        if is_constant(source):
            source = _converted(graph, source, result, step)
        elif source.type is None:
            source.type, source.shape = ir.TensorType(ir.DataType.FLOAT), result.shape
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        if source.name != result.name and source.is_graph_output() and not is_constant(source):
            _swap_names(source, result)
        graph.remove(node, safe=True)
    for name, value in tuple(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    for key in [key for key in model.functions if key[0].startswith(AMD_DOMAIN)]:
        del model.functions[key]
    _retype_ends(model)
    single_precision(model)


def _retype_ends(model: ir.Model) -> None:
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype in _HALF:
            value.type = ir.TensorType(ir.DataType.FLOAT)


def _step(node: ir.Node) -> Callable[[Values], Values] | None:
    """Return what the node does to a constant, if it is one of those that are taken out."""
    match node.op_type:
        case "Cast" if _between_floats(node):
            dtype = ir.DataType(node.attributes.get_int("to", 0)).numpy()
            return lambda x: x.astype(dtype)
        case "Clip" if _saturates(node):
            return lambda x: x
        case "ExtendedQuantizeLinear" | "ExtendedDequantizeLinear":
            return _scaling(node, down=node.op_type == "ExtendedQuantizeLinear")
    return _rounding(node) if node.op_type in ROUND_BLOCKS else None


def _between_floats(node: ir.Node) -> bool:
    source = node.inputs[0]
    if source is None:
        return False
    dtype = source.dtype if source.const_value is None else source.const_value.dtype
    to = node.attributes.get_int("to", 0)
    return to in _CASTABLE and (dtype in _CASTABLE or dtype is None)


def _saturates(node: ir.Node) -> bool:
    """Whether a Clip only keeps numbers inside a 16-bit format."""
    bounds = [scalar(value) for value in node.inputs[1:3]]
    return any(bounds == [-fmt.largest, fmt.largest] for fmt in FloatFormat)


def _scaling(node: ir.Node, *, down: bool) -> Callable[[Values], Values]:
    scale, zero = (constant(value) for value in node.inputs[1:3])
    if scale is None or zero is None or zero.dtype.kind in "iu":
        raise ModelError(
            f"node {node.name!r} is in integers; only 16-bit floats and block formats can be "
            "brought back to float32"
        )
    if down:
        return lambda x: (x.astype(np.float32) / scale).astype(zero.dtype)
    return lambda x: x.astype(np.float32) * scale


def _rounding(node: ir.Node) -> Callable[[Values], Values]:
    spec, axis = block_spec(node), block_attributes(node).axis
    return lambda x: spec.rounded(x, axis)


def _converted(
    graph: ir.Graph, source: ir.Value, result: ir.Value, step: Callable[[Values], Values]
) -> ir.Value:
    """Store what the node makes of a constant, to be computed when it is written."""
    before = source.const_value
    if before is None:
        raise ModelError(f"constant {source.name!r} has no data")
    name = str(result.name)
    dtype = ir.DataType.from_numpy(
        step(np.zeros((1,) * len(before.shape), before.dtype.numpy())).dtype
    )
    lazy = ir.LazyTensor(
        lambda: ir.tensor(step(read_tensor(before)), name=name),
        dtype=dtype,
        shape=ir.Shape(before.shape.numpy()),
        name=name,
    )
    value = add_constant(graph, f"{name}_value", lazy)
    value.type, value.shape = ir.TensorType(dtype), ir.Shape(before.shape.numpy())
    return value


def _swap_names(source: ir.Value, result: ir.Value) -> None:
    """Keep the name of a graph output."""
    source.name, result.name = result.name, None
