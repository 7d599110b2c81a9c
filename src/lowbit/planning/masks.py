"""Find the tensors between an attention mask and its Softmax: none may be in an integer format.

A mask is -inf, float32's lowest, -1e9, -1e4 or -100 where nothing is to be attended to, and zero
elsewhere. One scale for such a tensor leaves a single step for all scores next to it. It is made in
many ways: a constant, a Where, a product of an input with a large number, an input of its own.
So it is not recognized by how it is made: scores follow from linear layers or from a product of
activations, a mask does not, and both meet in a sum, a difference, a product or a Where.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import constant, constant_shape, is_constant
from lowbit.graph.naming import operator_name
from lowbit.ops.families import (
    ATTENTION,
    MASK_OFFSETS,
    MASK_STEPS,
    MASKING,
    READ_SHAPES,
    SOFTMAXES,
)
from lowbit.ops.linear import linear_operator
from lowbit.ops.traits import Kind, traits_of

# No trained weight is as large as the smallest number in use for "not at all".
_MASKED = 1e3
# Larger constants than this are not searched: a mask of 4096 positions squared.
_LARGEST = 1 << 24


def find_masks(graph: ir.Graph) -> set[ir.Value]:
    """Return the values between masks and their Softmax, the Softmax's input included."""
    computed = _after_layers(graph)
    carrying = _carrying(graph, computed)
    large = {value for value, is_large in carrying.items() if is_large}
    found: set[ir.Value] = set()
    for node in reversed(tuple(graph)):
        if node.op_type in SOFTMAXES and node.inputs[0] in carrying:
            found.add(node.inputs[0])
        mask = ATTENTION.get(operator_name(node))
        if mask is not None and mask < len(node.inputs) and node.inputs[mask] is not None:
            found.add(node.inputs[mask])  # type: ignore[arg-type]  # just seen not to be None
        if any(value in found or value in large for value in node.outputs):
            found.update(value for value in node.outputs if value.dtype == ir.DataType.FLOAT)
            found.update(_leading(node, computed, carrying))
    return found


def _leading(
    node: ir.Node, computed: set[ir.Value], carrying: Mapping[ir.Value, bool]
) -> Iterable[ir.Value]:
    """Yield the inputs by which a mask comes: all but scores that have met none yet."""
    if node.op_type in READ_SHAPES:
        return
    for value in node.inputs:
        is_float = value is not None and value.dtype == ir.DataType.FLOAT
        if value is not None and is_float and (value in carrying or value not in computed):
            yield value


def _after_layers(graph: ir.Graph) -> set[ir.Value]:
    """Return the values that follow from linear layers or products, other than by their shapes."""
    found: set[ir.Value] = set()
    for node in graph:
        if node.op_type in READ_SHAPES:
            continue
        if linear_operator(node) is not None or any(v in found for v in node.inputs):
            found.update(node.outputs)
    return found


def _carrying(graph: ir.Graph, computed: set[ir.Value]) -> dict[ir.Value, bool]:
    """Return the values that a mask is part of, and whether its numbers are known to be large."""
    carrying: dict[ir.Value, bool] = {}
    for node in graph:
        if node.domain != "" or not _passes(node):
            continue
        before = [carrying[v] for v in node.inputs if v is not None and v in carrying]
        large = _adds_large(node)
        if before or large or _meets(node, computed):
            carrying.update(dict.fromkeys(node.outputs, large or any(before)))
    return carrying


def _passes(node: ir.Node) -> bool:
    traits = traits_of(node)
    moves = traits is not None and traits.kind in (Kind.MOVES, Kind.CONCATENATES)
    return node.op_type in MASK_STEPS or moves


def _meets(node: ir.Node, computed: set[ir.Value]) -> bool:
    """Whether scores meet what does not follow from any layer, and is no scalar or bias either."""
    values = [node.inputs[i] for i in MASKING.get(node.op_type, ()) if i < len(node.inputs)]
    if not any(value in computed for value in values):
        return False
    others = [v for v in values if v is not None and v not in computed]
    chosen = node.op_type == "Where"
    return any(chosen or not is_constant(v) or _is_matrix(v) for v in others)


def _is_matrix(value: ir.Value) -> bool:
    return sum(size > 1 for size in constant_shape(value) or ()) >= 2


def _adds_large(node: ir.Node) -> bool:
    """Whether a node adds or selects the large numbers of a mask."""
    if node.op_type not in MASK_OFFSETS:
        return False
    return any(_is_large(node.inputs[i]) for i in MASKING[node.op_type] if i < len(node.inputs))


def _is_large(value: ir.Value | None) -> bool:
    shape = constant_shape(value)
    if value is None or shape is None or value.dtype != ir.DataType.FLOAT:
        return False
    data = constant(value)
    if data is None or not 0 < data.size <= _LARGEST:
        return False
    large = data[np.abs(data) >= _MASKED]
    # A mask shuts out in one direction; large numbers of both signs are data.
    return bool(np.isnan(data).any()) or bool(
        large.size and abs(np.sign(large).sum()) == large.size
    )
