"""Take 16-bit floats and block formats out of a model: the way back to float32.

What rounded activations is gone; constants keep the values they were rounded to. Constants are
converted when they are written, so that memory holds one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.errors import ModelError
from lowbit.graph.constants import add_constant, constant, is_constant, read_tensor, scalar
from lowbit.graph.passes.single_precision import single_precision
from lowbit.numerics.blocks import Element, Rounding, round_bfp, round_mx
from lowbit.numerics.floats import FloatFormat

_SIXTEEN = frozenset((ir.DataType.FLOAT16, ir.DataType.BFLOAT16))
_FLOATS = _SIXTEEN | {ir.DataType.FLOAT}
_ROUNDINGS = (Rounding.AWAY, Rounding.UP, Rounding.EVEN)

Values = NDArray[Any]


def full_precision(model: ir.Model) -> None:
    """Bring a model in 16-bit floats or blocks to float32, ends included. Changes ``model``."""
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
    for key in [key for key in model.functions if key[0] == "com.amd.quark"]:
        del model.functions[key]
    _retype_ends(model)
    single_precision(model)


def _retype_ends(model: ir.Model) -> None:
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.dtype in _SIXTEEN:
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
        case "BFPQuantizeDequantize":
            return _bfp(node)
        case "MXQuantizeDequantize":
            return _mx(node)
    return None


def _between_floats(node: ir.Node) -> bool:
    source = node.inputs[0]
    if source is None:
        return False
    dtype = source.dtype if source.const_value is None else source.const_value.dtype
    to = node.attributes.get_int("to", 0)
    return to in _FLOATS and (dtype in _FLOATS or dtype is None)


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


def _bfp(node: ir.Node) -> Callable[[Values], Values]:
    read = node.attributes.get_int
    return lambda x: round_bfp(
        x,
        read("axis", 1),
        bits=read("bit_width", 16),
        block=read("block_size", 8),
        pairs=node.attributes.get_string("bfp_method", "to_bfp") == "to_bfp_prime",
        rounding=_ROUNDINGS[read("rounding_mode", 0)],
    )


def _mx(node: ir.Node) -> Callable[[Values], Values]:
    read = node.attributes.get_int
    return lambda x: round_mx(
        x,
        read("axis", 1),
        element=Element(node.attributes.get_string("element_dtype", "int8")),
        block=read("block_size", 32),
        rounding=_ROUNDINGS[read("rounding_mode", 0)],
    )


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
    """Let a graph output keep its name."""
    source.name, result.name = result.name, None
