"""Gradients of operators that move, pick, pool or resize: see ``lowbit.ops.backward``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import constant
from lowbit.ops.backward_graph import BackwardGraph, known_sizes
from lowbit.ops.resizing import resizing_matrix

Gradients = Sequence[ir.Value | None]
Rule = Callable[[BackwardGraph, ir.Node, int, Gradients], ir.Value | None]
"""Returns the gradient of one input of a node, given those of its outputs (``None``: it is zero)."""

_SCATTER_ADDS = 16
"""The operator set from which on ScatterElements adds up."""


def _reshaped(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    x, gradient = node.inputs[0], gradients[0]
    return None if index or x is None or gradient is None else to.like(gradient, x)


def _same(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    del to, node
    return None if index else gradients[0]


def _transposed(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    x = node.inputs[index]
    if x is None or x.shape is None:
        return None
    order = list(node.attributes.get_ints("perm", list(range(len(x.shape)))[::-1]))
    return to.node("Transpose", gradients[0], perm=[int(i) for i in np.argsort(order)])


def _concatenated(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    axis, gradient = node.attributes.get_int("axis", 0), gradients[0]
    sizes = [_size(value, axis) for value in node.inputs]
    before = sizes[:index]
    if gradient is None or any(size is None for size in (*before, sizes[index])):
        return None
    start = sum(size or 0 for size in before)
    return to.sliced(gradient, axis, start, start + (sizes[index] or 0))


def _size(value: ir.Value | None, axis: int) -> int | None:
    sizes = None if value is None else known_sizes(value)
    return None if sizes is None else sizes[axis]


def _split(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    if index:
        return None
    parts = []
    for gradient, output in zip(gradients, node.outputs, strict=True):
        # What nothing reads has no gradient.
        parts.append(gradient or to.node("Mul", output, to.number(0.0)))
    return to.node("Concat", *parts, axis=node.attributes.get_int("axis", 0))


def _sliced(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    """Return the gradient of a part, with zeros around it."""
    x, gradient = node.inputs[0], gradients[0]
    given = [constant(value) for value in node.inputs[1:]]
    if index or x is None or gradient is None or len(given) < 2 or any(g is None for g in given):
        return None
    sizes = known_sizes(x)
    rows = [np.asarray(g).reshape(-1).tolist() for g in given]
    axes = rows[2] if len(rows) > 2 else list(range(len(rows[0])))
    steps = rows[3] if len(rows) > 3 else [1] * len(axes)
    if sizes is None or any(step != 1 for step in steps):
        return None
    pads = np.zeros((2, len(sizes)), np.int64)
    for axis, first, last in zip(axes, rows[0], rows[1], strict=True):
        size = sizes[axis]
        if size is None:
            return None
        start, end, _ = slice(first, last).indices(size)
        pads[:, axis] = start, size - max(end, start)
    return to.node("Pad", gradient, to.constant(pads.reshape(-1)))


def _gathered(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    """Return the gradient of one index picked along an axis, with zeros around it."""
    x, at, gradient = node.inputs[0], constant(node.inputs[1]), gradients[0]
    if index or x is None or gradient is None or at is None or at.size != 1 or x.shape is None:
        return None
    axis = node.attributes.get_int("axis", 0) % len(x.shape)
    # Where each position is the one that was picked, along the axis.
    positions = to.node("Range", *_until(to, x, axis))
    picked = to.node("Equal", positions, _position(to, x, axis, int(at.reshape(-1)[0])))
    shape = [1] * len(x.shape)
    shape[axis] = -1
    chosen = to.node("Cast", to.node("Reshape", picked, to.integers(*shape)), to=ir.DataType.FLOAT)
    if at.ndim == 0:
        # The axis is gone: it is put back as one of the picked shape, whatever the other sizes are.
        gradient = to.like(gradient, to.sliced(x, axis, 0, 1))
    return to.node("Mul", gradient, chosen)


def _until(to: BackwardGraph, x: ir.Value, axis: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    zero, one = (to.constant(np.array(number, np.int64)) for number in (0, 1))
    return zero, _length(to, x, axis), one


def _length(to: BackwardGraph, x: ir.Value, axis: int) -> ir.Value:
    number = to.constant(np.array(axis, np.int64))
    return to.node("Gather", to.node("Shape", x), number, axis=0)


def _position(to: BackwardGraph, x: ir.Value, axis: int, at: int) -> ir.Value:
    number = to.constant(np.array(at, np.int64))
    return number if at >= 0 else to.node("Add", _length(to, x, axis), number)


def _padded(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    pads, x, gradient = constant(node.inputs[1]), node.inputs[0], gradients[0]
    mode = node.attributes.get_string("mode", "constant")
    if index or pads is None or x is None or gradient is None or mode != "constant":
        return None
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        return None
    begins, ends = np.asarray(pads).reshape(2, -1)
    if min(*begins, *ends) < 0:
        return None
    found = gradient
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if begin or end:
            found = to.sliced(found, axis, int(begin), -int(end) if end else None)
    return found


def _averaged_all(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    x, gradient = node.inputs[index], gradients[0]
    sizes = None if x is None else known_sizes(x)
    if x is None or gradient is None or sizes is None or any(s is None for s in sizes[2:]):
        return None
    count = math.prod(size or 1 for size in sizes[2:])
    return to.spread(to.node("Mul", gradient, to.number(1 / count)), x)


def _averaged(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    """Return the gradient of pooled means: those of a convolution of every channel by itself."""
    x, gradient = node.inputs[index], gradients[0]
    sizes = (None if x is None else known_sizes(x)), known_sizes(node.outputs[0])
    kernel = list(node.attributes.get_ints("kernel_shape", []))
    if gradient is None or sizes[0] is None or sizes[1] is None or None in sizes[0][1:]:
        return None
    padded = any(node.attributes.get_ints("pads", [0]))
    if None in sizes[1][1:] or node.attributes.get_int("ceil_mode", 0) != 0:
        return None
    if padded and not node.attributes.get_int("count_include_pad", 0):
        return None
    channels = sizes[0][1] or 1
    weight = np.full((channels, 1, *kernel), 1 / math.prod(kernel), np.float32)
    wide = ir.node(
        "AveragePool", [x], {**node.attributes, "group": ir.AttrInt64("group", channels)}
    )
    return to.convolved_back(gradient, weight, wide, sizes[0][2:], sizes[1][2:])


def _largest(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    """Return the gradient of pooled maxima: each goes to where the maximum was."""
    x, gradient = node.inputs[index], gradients[0]
    if x is None or gradient is None or to.opset < _SCATTER_ADDS:
        return None
    _, at = to.nodes("MaxPool", x, outputs=2, **node.attributes)
    flat = to.integers(-1)
    zeros = to.node("Reshape", to.node("Mul", x, to.number(0.0)), flat)
    places, values = to.node("Reshape", at, flat), to.node("Reshape", gradient, flat)
    found = to.node("ScatterElements", zeros, places, values, axis=0, reduction="add")
    return to.like(found, x)


def _reduced(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    """Return the gradient of sums and means over axes."""
    x, gradient = node.inputs[0], gradients[0]
    axes = _axes(node)
    if index or x is None or gradient is None or x.shape is None or axes is None:
        return None
    sizes = known_sizes(x) or []
    axes = [axis % len(sizes) for axis in axes] or list(range(len(sizes)))
    if not node.attributes.get_int("keepdims", 1):
        kept = [1 if axis in axes else size for axis, size in enumerate(sizes)]
        if kept.count(None) > 1:
            return None
        shape = to.integers(*(-1 if size is None else size for size in kept))
        gradient = to.node("Reshape", gradient, shape)
    if node.op_type == "ReduceMean":
        if any(sizes[axis] is None for axis in axes):
            return None
        count = math.prod(sizes[axis] or 1 for axis in axes)
        gradient = to.node("Mul", gradient, to.number(1 / count))
    return to.spread(gradient, x)


def _axes(node: ir.Node) -> list[int] | None:
    """Return the axes that a node reduces, none if all; ``None`` if they are not known."""
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        given = constant(node.inputs[1])
        return None if given is None else [int(axis) for axis in given.reshape(-1)]
    return list(node.attributes.get_ints("axes", []))


def _resized(to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients) -> ir.Value | None:
    """Return the gradient of an interpolation: along each axis it is a product with a matrix."""
    x, gradient = node.inputs[0], gradients[0]
    sizes = (None if x is None else known_sizes(x)), known_sizes(node.outputs[0])
    if index or gradient is None or sizes[0] is None or sizes[1] is None:
        return None
    pairs = list(zip(sizes[0], sizes[1], strict=True))
    if len(pairs) != 4 or any(a is None or b is None for a, b in pairs[1:]):
        return None
    if pairs[1][0] != pairs[1][1]:
        return None
    rows, columns = (resizing_matrix(node, int(a or 0), int(b or 0)) for a, b in pairs[2:])
    if rows is None or columns is None:
        return None
    found = to.node("MatMul", gradient, to.constant(columns))
    return to.node("MatMul", to.constant(np.ascontiguousarray(rows.T)), found)


def _depth_to_space(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    if index or node.attributes.get_string("mode", "DCR") != "DCR":
        return None
    return to.node("SpaceToDepth", gradients[0], blocksize=node.attributes.get_int("blocksize", 1))


def _space_to_depth(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    if index:
        return None
    return to.node("DepthToSpace", gradients[0], blocksize=node.attributes.get_int("blocksize", 1))


def _expanded(
    to: BackwardGraph, node: ir.Node, index: int, gradients: Gradients
) -> ir.Value | None:
    x, gradient = node.inputs[0], gradients[0]
    if index or x is None or gradient is None:
        return None
    return to.unbroadcast(gradient, x, node.outputs[0])


MOVEMENT_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "Identity": _same,
        "Dropout": _same,
        "Flatten": _reshaped,
        "Reshape": _reshaped,
        "Squeeze": _reshaped,
        "Unsqueeze": _reshaped,
        "Transpose": _transposed,
        "Concat": _concatenated,
        "Split": _split,
        "Slice": _sliced,
        "Gather": _gathered,
        "Pad": _padded,
        "Expand": _expanded,
        "GlobalAveragePool": _averaged_all,
        "AveragePool": _averaged,
        "MaxPool": _largest,
        "ReduceMean": _reduced,
        "ReduceSum": _reduced,
        "Resize": _resized,
        "DepthToSpace": _depth_to_space,
        "SpaceToDepth": _space_to_depth,
    }
)
"""The rules of operators that compute nothing, or sums and maxima alone."""
