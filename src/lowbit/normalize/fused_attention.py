"""onnxruntime's fused Attention as a linear layer and attention alone.

Its three projections are one matrix of weights inside the operator, where no integer kernel reaches
them. MatMul, Add and MultiHeadAttention compute the same, and the product is a layer like any other.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import add_constant, constant_shape, take_over
from lowbit.graph.naming import MICROSOFT, answer_to, operator_name, tensor_name

_SAME = ("num_heads", "mask_filter_value", "scale", "unidirectional")


def separate_projections(model: ir.Model) -> bool:
    """Take the projections out of every Attention that has no cache; whether there was one.

    Changes ``model``.
    """
    found = [
        node
        for node in model.graph
        if operator_name(node) == "com.microsoft::Attention" and _is_plain(node)
    ]
    for node in found:
        _separate(model.graph, node)
    return bool(found)


def _input(node: ir.Node, index: int) -> ir.Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _is_plain(node: ir.Node) -> bool:
    """Whether nothing is asked for that MultiHeadAttention has not, or has otherwise."""
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return False
    if _input(node, 4) is not None or _input(node, 6) is not None:
        return False
    if node.attributes.get_int("do_rotary", 0) or constant_shape(_input(node, 1)) is None:
        return False
    return _is_common_mask(_input(node, 3), node.inputs[0])


def _is_common_mask(mask: ir.Value | None, source: ir.Value | None) -> bool:
    """Whether a mask has a number for each token or, with one axis, the length of each sequence.

    Starts and ends of sequences have one axis too, but twice or three times as many numbers.
    """
    if mask is None:
        return True
    if mask.shape is None or source is None or source.shape is None:
        return False
    return len(mask.shape) == 2 or (len(mask.shape) == 1 and mask.shape[0] == source.shape[0])


def _sizes(node: ir.Node) -> list[int]:
    """Return how many channels query, key and value have."""
    sizes = list(node.attributes.get_ints("qkv_hidden_sizes", ()))
    shape = constant_shape(node.inputs[1]) or (0, 0)
    return sizes or [shape[1] // 3] * 3


def _separate(graph: ir.Graph, node: ir.Node) -> None:
    """Replace one node. Changes ``graph``."""
    source, output = node.inputs[0], node.outputs[0]
    name = tensor_name(output)
    made = [ir.node("MatMul", [source, node.inputs[1]], name=f"{node.name}_projections")]
    if (bias := _input(node, 2)) is not None:
        made.append(ir.node("Add", [made[-1].outputs[0], bias], name=f"{node.name}_bias"))
    sizes = add_constant(graph, f"{name}_sizes", np.asarray(_sizes(node), np.int64))
    split = ir.node(
        "Split",
        [made[-1].outputs[0], sizes],
        {"axis": -1},
        num_outputs=3,
        name=f"{node.name}_split",
    )
    query, key, value = split.outputs
    attention = ir.node(
        "MultiHeadAttention",
        [query, key, value, None, _input(node, 3), _input(node, 5)],
        {key: node.attributes[key] for key in _SAME if key in node.attributes},
        domain=MICROSOFT,
        name=f"{node.name}_attention",
    )
    made += [split, attention]
    for index, new in enumerate(made):
        answer_to(new, str(node.name))
        for number, result in enumerate(new.outputs):
            result.name = f"{name}_{index}_{number}"
    graph.insert_before(node, made)
    take_over(output, attention.outputs[0])
    graph.remove(node, safe=True)
