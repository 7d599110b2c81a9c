"""Rewrites of matrix products for runtimes whose integer kernels are MatMul's alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, candidates, constant_shape, read_tensor, replace_node
from lowbit.graph.naming import tensor_name


def gemm_to_matmul(graph: ir.Graph) -> None:
    """Gemm of constant weights becomes MatMul and Add, its factors part of the constants."""
    for node in candidates(graph):
        if node.op_type != "Gemm" or node.attributes.get_int("transA", 0) != 0:
            continue
        source, weight = node.inputs[0], node.inputs[1]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if source is None or weight is None or constant_shape(weight) is None:
            continue
        beta = node.attributes.get_float("beta", 1.0)
        if bias is not None and beta != 1.0 and constant_shape(bias) is None:
            continue
        product = ir.node("MatMul", [source, _factor(graph, node, weight)])
        if bias is None:
            replace_node(graph, node, [product])
            continue
        inner = product.outputs[0]
        inner.name = f"{tensor_name(node.outputs[0])}_product"
        inner.type, inner.shape = node.outputs[0].type, node.outputs[0].shape
        product.name = f"{node.name}_product"
        if beta != 1.0:
            bias = add_constant(graph, f"{bias.name}_scaled", _values(bias) * np.float32(beta))
            bias.type = ir.TensorType(ir.DataType.FLOAT)
        replace_node(graph, node, [product, ir.node("Add", [inner, bias])])


def _factor(graph: ir.Graph, node: ir.Node, weight: ir.Value) -> ir.Value:
    """Return the second factor of the product: the weights, turned and scaled as Gemm does it."""
    alpha = np.float32(node.attributes.get_float("alpha", 1.0))
    transposed = node.attributes.get_int("transB", 0) != 0
    shape = constant_shape(weight)
    if shape is None or (alpha == 1.0 and not transposed):
        return weight
    name = tensor_name(weight)

    def make() -> ir.TensorProtocol:
        data = _values(weight)
        data = data if alpha == 1.0 else data * alpha
        return ir.Tensor(np.ascontiguousarray(data.T) if transposed else data, name=name)

    shape = shape[::-1] if transposed else shape
    lazy = ir.LazyTensor(make, dtype=ir.DataType.FLOAT, shape=ir.Shape(shape), name=name)
    value = add_constant(graph, f"{name}_transposed" if transposed else f"{name}_scaled", lazy)
    value.shape, value.type = ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
    return value


def _values(value: ir.Value) -> np.ndarray:
    tensor = value.const_value
    if tensor is None:
        raise ValueError(f"{value.name!r} is no constant")
    return np.asarray(read_tensor(tensor), np.float32)
