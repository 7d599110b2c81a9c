"""Inputs and outputs of a quantized model as the integers they are: what is passed on takes a quarter of the space.

A cache of keys and values that is quantized passes from call to call. As long as the model takes and gives floats,
they are rounded anew whenever it is called; here the outer QuantizeLinear and DequantizeLinear are left out.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.errors import ModelError
from lowbit.graph.editing import constant, drop_unused_constants, free_name, only_consumer
from lowbit.graph.naming import tensor_name


def with_integer_io(model: ir.Model) -> ir.Model:
    """Return the model with the integers of quantized inputs and outputs; their scales are in its metadata.

    The model is changed.
    """
    graph = model.graph
    inputs = [value for value in graph.inputs if _quantizer(value) is not None]
    outputs = [value for value in graph.outputs if _dequantizer(value) is not None]
    if not inputs and not outputs:
        raise ModelError(
            "no input is quantized first and no output dequantized last: quantize the model, with its cache "
            "if that is what is to be stored in integers (--cache int8)"
        )
    for value in inputs:
        _take_integers(model, value)
    for value in outputs:
        _give_integers(model, value)
    drop_unused_constants(graph)
    return model


def _quantizer(value: ir.Value) -> ir.Node | None:
    node = only_consumer(value)
    return node if node is not None and node.op_type == "QuantizeLinear" else None


def _dequantizer(value: ir.Value) -> ir.Node | None:
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear":
        return None
    source = node.inputs[0]
    return node if source is not None and not source.is_graph_output() else None


def _take_integers(model: ir.Model, value: ir.Value) -> None:
    node = _quantizer(value)
    if node is None:
        return
    codes = node.outputs[0]
    _tell(model, tensor_name(value), node)
    for user, index in tuple(codes.uses()):
        user.replace_input_with(index, value)
    value.type = ir.TensorType(_integer_type(node))
    model.graph.remove(node, safe=True)


def _give_integers(model: ir.Model, value: ir.Value) -> None:
    node = _dequantizer(value)
    codes = None if node is None else node.inputs[0]
    if node is None or codes is None:
        return
    name = tensor_name(value)
    _tell(model, name, node)
    codes.type, codes.shape = ir.TensorType(_integer_type(node)), value.shape
    for index, output in enumerate(model.graph.outputs):
        if output is value:
            model.graph.outputs[index] = codes
    if value.uses():
        # Attention reads what is passed on, as it does in the next call.
        value.name = free_name(model.graph, f"{name}_DequantizeLinear_Output")
    else:
        model.graph.remove(node, safe=True)
    codes.name = name


def _integer_type(node: ir.Node) -> ir.DataType:
    """Return the type of the zero point; without one it is unsigned."""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    return ir.DataType.UINT8 if zero is None or zero.dtype is None else zero.dtype


def _tell(model: ir.Model, name: str, node: ir.Node) -> None:
    scale = constant(node.inputs[1])
    zero = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    offset = 0 if zero is None else int(np.ravel(zero)[0])
    if scale is not None and scale.size == 1:
        model.metadata_props[f"lowbit.scale.{name}"] = f"{float(scale.item()):.9g}, {offset}"
