"""Operators that a positive factor on a channel passes through unchanged.

f(t x) = t f(x) for each channel: activations without a bend elsewhere than at zero, averages and
maxima over positions, and what only moves numbers. Each row of the table says where the channels
lie afterwards.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.graph.editing import is_constant
from lowbit.ops.traits import clip_bounds, constant_integers, moves_exactly, reduced_axes


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where the channels of a tensor lie.

    ``repeat`` neighbours along the axis belong to one channel, as after Flatten.
    """

    axis: int
    rank: int
    repeat: int = 1


def carry(node: ir.Node, place: Place) -> Place | None:
    """Return where the channels of the first input lie in the output; ``None`` if they do not."""
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    return None if rule is None else rule(node, place)


def _same(_: ir.Node, place: Place) -> Place:
    return place


def _prelu(node: ir.Node, place: Place) -> Place | None:
    return place if is_constant(node.inputs[1]) else None


def _clip(node: ir.Node, place: Place) -> Place | None:
    low, high = clip_bounds(node)
    bounded = any(value is not None for value in node.inputs[1:])
    if low is None and high is None:
        return None if bounded else place
    known_high = high is not None or len(node.inputs) < 3 or node.inputs[2] is None
    return place if low == 0 and known_high and (high is None or high > 0) else None


def _pool(node: ir.Node, place: Place) -> Place | None:
    return place if place.axis == 1 and len(node.outputs) == 1 else None


def _reduce(node: ir.Node, place: Place) -> Place | None:
    axes = reduced_axes(node)
    if axes is None or place.axis in axes:
        return None
    if node.attributes.get_int("keepdims", 1):
        return place
    before = sum(axis < place.axis for axis in axes)
    return Place(place.axis - before, place.rank - len(axes), place.repeat)


def _pad(node: ir.Node, place: Place) -> Place | None:
    pads = constant_integers(node, 1)
    if pads is None or len(pads) != 2 * place.rank or not moves_exactly(node):
        return None
    return place if pads[place.axis] == pads[place.axis + place.rank] == 0 else None


def _flatten(node: ir.Node, place: Place) -> Place | None:
    if node.attributes.get_int("axis", 1) != 1:
        return None
    return _flat(node, place)


def _reshape(node: ir.Node, place: Place) -> Place | None:
    """Follow a Reshape that does what Flatten does."""
    result = node.outputs[0].shape
    flat = _flat(node, place)
    source = node.inputs[0]
    if flat is None or result is None or len(result) != 2 or source is None or not source.shape:
        return None
    return flat if result[1] == math.prod(_sizes(source.shape[1:]) or [0]) else None


def _flat(node: ir.Node, place: Place) -> Place | None:
    source = node.inputs[0]
    if place.axis != 1 or source is None or source.shape is None:
        return None
    sizes = _sizes(source.shape[2:])
    return None if sizes is None else Place(1, 2, place.repeat * math.prod(sizes))


def _squeeze(node: ir.Node, place: Place) -> Place | None:
    given = constant_integers(node, 1)
    axes = [] if given is None else [axis % place.rank for axis in given]
    if not axes or place.axis in axes:
        return None
    before = sum(axis < place.axis for axis in axes)
    return Place(place.axis - before, place.rank - len(axes), place.repeat)


def _transpose(node: ir.Node, place: Place) -> Place | None:
    order = list(node.attributes.get_ints("perm", ())) or list(range(place.rank))[::-1]
    return Place(order.index(place.axis), place.rank, place.repeat)


def _resize(node: ir.Node, place: Place) -> Place | None:
    """Resizing is linear in the numbers; the channels must keep their count."""
    source, result = node.inputs[0], node.outputs[0]
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize" or source is None or not source.shape or not result.shape:
        return None
    before, after = source.shape[place.axis], result.shape[place.axis]
    return place if isinstance(before, int) and before == after else None


_RULES: Mapping[str, Callable[[ir.Node, Place], Place | None]] = MappingProxyType(
    {
        "Relu": _same,
        "LeakyRelu": _same,
        "PRelu": _prelu,
        "Clip": _clip,
        "MaxPool": _pool,
        "AveragePool": _pool,
        "GlobalAveragePool": _pool,
        "GlobalMaxPool": _pool,
        "ReduceMean": _reduce,
        "ReduceMax": _reduce,
        "Pad": _pad,
        "Flatten": _flatten,
        "Reshape": _reshape,
        "Squeeze": _squeeze,
        "Transpose": _transpose,
        "Resize": _resize,
    }
)


def _sizes(dimensions: tuple[int | ir.SymbolicDim, ...]) -> list[int] | None:
    sizes = [size for size in dimensions if isinstance(size, int)]
    return sizes if len(sizes) == len(dimensions) else None
