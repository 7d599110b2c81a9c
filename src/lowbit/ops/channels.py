"""Channel layouts, and the operators that a positive factor on a channel passes through.

f(t x) = t f(x) for each channel: activations without a bend elsewhere than at zero, averages and
maxima over positions, and data movement. Each row of the table says where the channels lie after it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.ops.activations import is_scale_invariant
from lowbit.ops.traits import constant_integers, moves_exactly, reduced_axes


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelLayout:
    """Where the channels of a tensor lie.

    ``repeat`` neighbours along the axis belong to one channel, as after Flatten.
    """

    axis: int
    rank: int
    repeat: int = 1


def propagate(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    """Return where the channels of the first input lie in the output; ``None`` if they do not."""
    if is_scale_invariant(node):
        return layout
    rule = _RULES.get(node.op_type) if node.domain == "" else None
    return None if rule is None else rule(node, layout)


def _pool(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    return layout if layout.axis == 1 and len(node.outputs) == 1 else None


def _reduce(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    axes = reduced_axes(node)
    if axes is None or layout.axis in axes:
        return None
    if node.attributes.get_int("keepdims", 1):
        return layout
    before = sum(axis < layout.axis for axis in axes)
    return ChannelLayout(layout.axis - before, layout.rank - len(axes), layout.repeat)


def _pad(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    pads = constant_integers(node, 1)
    if pads is None or len(pads) != 2 * layout.rank or not moves_exactly(node):
        return None
    return layout if pads[layout.axis] == pads[layout.axis + layout.rank] == 0 else None


def _flatten(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    if node.attributes.get_int("axis", 1) != 1:
        return None
    return _flat(node, layout)


def _reshape(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    """Follow a Reshape that does what Flatten does."""
    result = node.outputs[0].shape
    flat = _flat(node, layout)
    source = node.inputs[0]
    if flat is None or result is None or len(result) != 2 or source is None or not source.shape:
        return None
    return flat if result[1] == math.prod(_sizes(source.shape[1:]) or [0]) else None


def _flat(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    source = node.inputs[0]
    if layout.axis != 1 or source is None or source.shape is None:
        return None
    sizes = _sizes(source.shape[2:])
    return None if sizes is None else ChannelLayout(1, 2, layout.repeat * math.prod(sizes))


def _squeeze(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    given = constant_integers(node, 1)
    axes = [] if given is None else [axis % layout.rank for axis in given]
    if not axes or layout.axis in axes:
        return None
    before = sum(axis < layout.axis for axis in axes)
    return ChannelLayout(layout.axis - before, layout.rank - len(axes), layout.repeat)


def _transpose(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    order = list(node.attributes.get_ints("perm", ())) or list(range(layout.rank))[::-1]
    return ChannelLayout(order.index(layout.axis), layout.rank, layout.repeat)


def _resize(node: ir.Node, layout: ChannelLayout) -> ChannelLayout | None:
    """Resizing is linear in the numbers; the channels must keep their count."""
    source, result = node.inputs[0], node.outputs[0]
    mode = node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize" or source is None or not source.shape or not result.shape:
        return None
    before, after = source.shape[layout.axis], result.shape[layout.axis]
    return layout if isinstance(before, int) and before == after else None


_RULES: Mapping[str, Callable[[ir.Node, ChannelLayout], ChannelLayout | None]] = MappingProxyType(
    {
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
