"""Rewrites around normalizations, for runtimes that compute them one by one faster than fused."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.editing import candidates, is_constant, replace_node
from lowbit.ops.composites import find_composites

# The first in which Sum broadcasts.
_LOWEST_OPSET = 8


def normalized_add_to_sum(graph: ir.Graph) -> None:
    """Add of two tensors that only a LayerNormalization reads becomes Sum, which computes the same.

    onnxruntime fuses the Add with the normalization. On a CPU the fused operator adds numbers up one by
    one: SkipLayerNormalization takes four times as long as Add and LayerNormalization.
    """
    if graph.opset_imports.get("", 1) < _LOWEST_OPSET:
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
