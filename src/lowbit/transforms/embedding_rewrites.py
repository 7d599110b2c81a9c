"""onnxruntime's fused embedding written out, so that its tables are looked up as integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import KEPT, add_constant, constant_shape, take_over
from lowbit.graph.naming import operator_name, tensor_name

_INT32 = int(ir.DataType.INT32)
# The first with LayerNormalization.
_LOWEST_OPSET = 17


def embed_layer_norm_to_gather(graph: ir.Graph) -> None:
    """EmbedLayerNormalization becomes Gather for each table, Add and LayerNormalization."""
    if graph.opset_imports.get("", 1) < _LOWEST_OPSET:
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
