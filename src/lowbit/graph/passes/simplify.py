"""Drop what computes nothing, and compute nothing twice."""

from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.constants import is_constant
from lowbit.graph.names import absorb, answer_to

# Each draws anew, so two of them are not the same.
_RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli "
    "Dropout".split()
)


def drop_identities(model: ir.Model) -> None:
    """Remove Identity, and Dropout outside training. Changes ``model``."""
    for node in tuple(model.graph):
        if node.domain != "" or node.op_type not in ("Identity", "Dropout"):
            continue
        if node.op_type == "Dropout" and not _is_inactive_dropout(node):
            continue
        _bypass(model.graph, node)


def drop_duplicates(model: ir.Model) -> None:
    """Merge nodes that compute the same from the same values. Changes ``model``."""
    seen: dict[tuple[object, ...], ir.Node] = {}
    for node in tuple(model.graph):
        key = _signature(node)
        if key is None:
            continue
        first = seen.setdefault(key, node)
        if first is node or any(v.is_graph_output() for v in node.outputs):
            continue
        absorb(first, node)
        for new, old in zip(first.outputs, node.outputs, strict=True):
            old.replace_all_uses_with(new)
        model.graph.remove(node, safe=True)


def _is_inactive_dropout(node: ir.Node) -> bool:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None:
        tensor = training.const_value
        if tensor is None or bool(tensor.numpy().any()):
            return False
    mask = node.outputs[1] if len(node.outputs) > 1 else None
    return mask is None or (not mask.uses() and not mask.is_graph_output())


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    source, result = node.inputs[0], node.outputs[0]
    if source is None:
        return
    if not result.is_graph_output():
        result.replace_all_uses_with(source)
        graph.remove(node, safe=True)
        return
    # The output's name must survive: the producer takes it over, if nobody else knows its own.
    producer = source.producer()
    if producer is None or source.is_graph_output() or producer.graph is not graph:
        return
    name = result.name
    answer_to(producer, source.name)
    ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
    source.type, source.shape = result.type or source.type, result.shape or source.shape
    graph.remove(node, safe=True)
    source.name = name


def _signature(node: ir.Node) -> tuple[object, ...] | None:
    # Operators of other domains may keep state or draw random numbers.
    if node.domain != "" or node.op_type in _RANDOM or node.op_type == "Constant":
        return None
    attributes: list[object] = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in (
            ir.AttributeType.GRAPH,
            ir.AttributeType.GRAPHS,
            ir.AttributeType.TENSOR,
            ir.AttributeType.TENSORS,
        ):
            return None
        attributes.append((name, repr(attribute.value)))
    inputs = tuple(_identity(v) for v in node.inputs)
    return node.op_type, inputs, tuple(attributes), len(node.outputs)


def _identity(value: ir.Value | None) -> object:
    """Return what makes an input the same as another: itself, or a small constant's content."""
    if value is None or not is_constant(value) or value.const_value is None:
        return id(value) if value is not None else None
    tensor = value.const_value
    if tensor.size > 64 or tensor.dtype == ir.DataType.STRING:
        return id(value)
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
