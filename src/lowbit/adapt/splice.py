"""Putting nodes into a graph while tensors keep their names."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from lowbit.graph.names import answer_to, names_of, tensor_name
from lowbit.plan.placement import ARITHMETIC

KEPT = "lowbit.kept"
"""Mark of nodes that no rewrite may touch."""


def candidates(graph: ir.Graph) -> tuple[ir.Node, ...]:
    """Return the standard operators' nodes that may be rewritten, in order."""
    return tuple(node for node in graph if node.domain == "" and not node.meta.get(KEPT))


def replace_node(graph: ir.Graph, old: ir.Node, new: Sequence[ir.Node]) -> None:
    """Let the last of ``new`` write what ``old`` wrote, under the same tensor names."""
    new[-1].name = old.name
    for node in new:
        answer_to(node, *names_of(old))
    graph.insert_before(old, list(new))
    for before, after in zip(old.outputs, new[-1].outputs, strict=True):
        take_over(before, after)
    graph.remove(old, safe=True)


def take_over(old: ir.Value, new: ir.Value) -> None:
    """Let ``new`` stand wherever ``old`` did, with its name, type and shape."""
    name = old.name
    new.type, new.shape = old.type, old.shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name = f"{name}_replaced"
    new.name = name


def append_factor(graph: ir.Graph, node: ir.Node, factor: ir.Value) -> None:
    """Multiply a node's output by a constant, as part of that node's own arithmetic."""
    output = node.outputs[0]
    name = tensor_name(output)
    product = ir.node("Mul", [output, factor], name=f"{name}_Mul")
    product.meta[ARITHMETIC] = True
    result = product.outputs[0]
    result.type, result.shape = output.type, output.shape
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    product.replace_input_with(0, output)
    output.name, result.name = f"{name}_Mul", name
    graph.insert_after(node, product)
