"""Rewrites for runtimes: operators that their integer kernels, or their faster ones, are for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import (
    KEPT,
    add_constant,
    candidates,
    constant_shape,
    is_constant,
    read_tensor,
    replace_node,
    take_over,
)
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.ops.composites import find_composites

_INT32 = int(ir.DataType.INT32)
# The first operator sets in which Sum broadcasts, and with LayerNormalization.
_BROADCASTING_SUM, _WITH_LAYER_NORM = 8, 17


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


def normalized_add_to_sum(graph: ir.Graph) -> None:
    """Add of two tensors that only a LayerNormalization reads becomes Sum, which computes the same.

    onnxruntime fuses the Add with the normalization. On a CPU the fused operator adds numbers up one by
    one: SkipLayerNormalization takes four times as long as Add and LayerNormalization.
    """
    if graph.opset_imports.get("", 1) < _BROADCASTING_SUM:
        return
    written_out = {
        node: index for index, part in enumerate(find_composites(graph)) for node in part.nodes
    }
    for node in candidates(graph):
        if node.op_type != "Add" or any(v is None or is_constant(v) for v in node.inputs):
            continue
        readers = {use.node for use in node.outputs[0].uses()}
        if node.outputs[0].is_graph_output() or not readers:
            continue
        parts = {written_out.get(reader) for reader in readers}
        alone = len(readers) == 1 and next(iter(readers)).op_type == "LayerNormalization"
        if alone or (len(parts) == 1 and None not in parts and _takes_means(readers)):
            replace_node(graph, node, [ir.node("Sum", node.inputs)])


def _takes_means(readers: set[ir.Node]) -> bool:
    """Whether these begin a normalization that is written out, rather than an activation."""
    return any(node.op_type == "ReduceMean" for node in readers)


def embed_layer_norm_to_gather(graph: ir.Graph) -> None:
    """EmbedLayerNormalization becomes Gather for each table, Add and LayerNormalization."""
    if graph.opset_imports.get("", 1) < _WITH_LAYER_NORM:
        return
    for node in tuple(graph):
        if operator_name(node) != "com.microsoft::EmbedLayerNormalization" or node.meta.get(KEPT):
            continue
        if constant_shape(node.inputs[2]) is not None:
            _write_out(graph, node)


class _Writer:
    """Puts nodes before one, named after it."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self.graph, self.node = graph, node

    def make(
        self, op: str, inputs: list[ir.Value | None], word: str, **attributes: float
    ) -> ir.Value:
        made = ir.node(op, inputs, attributes, name=f"{self.node.name}_{word}")
        made.outputs[0].name = f"{tensor_name(self.node.outputs[0])}_{word}"
        self.graph.insert_before(self.node, made)
        return made.outputs[0]

    def number(self, word: str, value: int | list[int]) -> ir.Value:
        return add_constant(self.graph, f"{self.node.name}_{word}", np.asarray(value, np.int64))


def _write_out(graph: ir.Graph, node: ir.Node) -> None:
    """Replace one node. Changes ``graph``."""
    inputs = [*node.inputs, *[None] * (9 - len(node.inputs))]
    ids, segments, words, positions, kinds, gamma, beta, mask, given = inputs[:9]
    writer = _Writer(graph, node)
    total = writer.make("Gather", [words, ids], "words", axis=0)
    at = given if given is not None else _positions(writer, ids)
    rows = writer.make("Gather", [positions, at], "positions", axis=0)
    total = writer.make("Add", [total, rows], "placed")
    if segments is not None and kinds is not None:
        rows = writer.make("Gather", [kinds, segments], "kinds", axis=0)
        total = writer.make("Add", [total, rows], "sum")
    epsilon = node.attributes.get_float("epsilon", 1e-12)
    normed = writer.make(
        "LayerNormalization", [total, gamma, beta], "normed", axis=-1, epsilon=epsilon
    )
    results = [normed, _mask_index(writer, ids, mask), total]
    for old, new in zip(node.outputs, results, strict=False):
        if old.uses() or old.is_graph_output():
            take_over(old, new)
    graph.remove(node, safe=True)


def _positions(writer: _Writer, ids: ir.Value | None) -> ir.Value:
    shape = writer.make("Shape", [ids], "shape")
    length = writer.make("Gather", [shape, writer.number("second", 1)], "length", axis=0)
    return writer.make(
        "Range", [writer.number("first", 0), length, writer.number("step", 1)], "range"
    )


def _mask_index(writer: _Writer, ids: ir.Value | None, mask: ir.Value | None) -> ir.Value:
    """Return how many tokens of each sequence are no padding; none of them without a mask."""
    if len(writer.node.outputs) < 2 or not writer.node.outputs[1].uses():
        return writer.node.outputs[0]
    axes = writer.number("last_axis", [1])
    if mask is None:
        zeros = writer.make("Sub", [ids, ids], "zeros")
        mask = writer.make("Cast", [zeros], "no_mask", to=_INT32)
    return writer.make("ReduceSum", [mask, axes], "mask_index", keepdims=0)
