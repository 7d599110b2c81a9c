"""Replace gates that are decomposed into several operators by one operator."""

from __future__ import annotations

import math

import onnx_ir as ir

from lowbit.graph.editing import (
    KEPT,
    candidates,
    drop_unused,
    is_constant,
    only_consumer,
    replace_node,
    scalar,
)
from lowbit.graph.naming import answer_to, names_of, tensor_name
from lowbit.ops.traits import clip_bounds

_NEARLY = 1e-5


def compose_hardsigmoid(graph: ir.Graph) -> None:
    """Clip(x + c, 0, h) / h becomes HardSigmoid(x; 1/h, c/h), also where it is divided after its product.

    Written out, a hard swish is four tensors with a quantizer each: the range of x + c rounds x once more,
    and that of the product before it is divided is another one.
    """
    for clip in candidates(graph):
        added = clip.inputs[0].producer() if clip.op_type == "Clip" and clip.inputs[0] else None
        low, high = clip_bounds(clip) if added is not None else (None, None)
        if added is None or low != 0 or not high or high <= 0:
            continue
        source, offset = _shifted(added)
        end = only_consumer(clip.outputs[0])
        if source is None or end is None or only_consumer(added.outputs[0]) is not clip:
            continue
        gate = ir.node("HardSigmoid", [source], {"alpha": 1 / high, "beta": offset / high})
        _replace(graph, (added, clip), end, gate, high)
    drop_unused(graph)


def _replace(
    graph: ir.Graph, parts: tuple[ir.Node, ir.Node], end: ir.Node, gate: ir.Node, high: float
) -> None:
    """Put the gate in the place of what divides the Clip, or its product with something, by its bound."""
    clip = parts[1]
    product = None
    if not _divides(end, high):
        if end.op_type != "Mul" or end.domain != "" or any(is_constant(v) for v in end.inputs):
            return
        product, divided = end, only_consumer(end.outputs[0])
        if divided is None or not _divides(divided, high):
            return
        end = divided
    touched = [*parts, end, *([product] if product is not None else [])]
    if any(node.meta.get(KEPT) for node in touched):
        return
    name = tensor_name(clip.outputs[0])
    gate.name = str(clip.name)
    new = [gate]
    if product is not None:
        gate.outputs[0].name = f"{name}_gate"
        gate.outputs[0].type, gate.outputs[0].shape = clip.outputs[0].type, clip.outputs[0].shape
        inputs = [gate.outputs[0] if v is clip.outputs[0] else v for v in product.inputs]
        new.append(ir.node("Mul", inputs))
    replace_node(graph, end, new)
    for node in touched:
        for each in new:
            answer_to(each, *names_of(node))


def _shifted(node: ir.Node) -> tuple[ir.Value | None, float]:
    """Return what a node adds one number to, and the number."""
    if node.op_type != "Add" or node.domain != "":
        return None, 0.0
    for value, other in (node.inputs, node.inputs[::-1]):
        offset = scalar(other)
        if value is not None and offset is not None and not is_constant(value):
            return value, offset
    return None, 0.0


def _divides(node: ir.Node, number: float) -> bool:
    """Whether a node divides what it computes by a number."""
    if node.op_type == "Div" and node.domain == "":
        found = scalar(node.inputs[1])
    elif node.op_type == "Mul" and node.domain == "":
        factor = next((f for f in map(scalar, node.inputs) if f), None)
        found = None if factor is None else 1 / factor
    else:
        found = None
    return found is not None and math.isclose(found, number, rel_tol=_NEARLY)
