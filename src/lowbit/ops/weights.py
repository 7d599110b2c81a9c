"""Which inputs of a node are weights that take space: linear layers, embeddings, recurrent layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from lowbit.graph.editing import constant_shape
from lowbit.graph.naming import operator_name
from lowbit.ops.geometry import ConvLayer, LinearLayer
from lowbit.ops.linear import has_constant_weight, layer_of, linear_operator
from lowbit.ops.traits import OPERATORS, Operators, traits_of


@dataclasses.dataclass(frozen=True, slots=True)
class WeightInput:
    """One weight of a node: which input it is, and where outputs and inputs of the layer lie in it.

    ``reduced_axis`` is ``None`` where no axis can be cut into groups.
    """

    index: int
    channel_axis: int
    reduced_axis: int | None


# Weights and recurrence weights are directions x gates * hidden x inputs.
_RECURRENT = (WeightInput(1, 1, 2), WeightInput(2, 1, 2))
# The three projections are concatenated: inputs x 3 * hidden.
_PROJECTIONS = (WeightInput(1, 1, 0),)
RECURRENT = ("LSTM", "GRU", "RNN")
IN_FLOAT: Mapping[str, tuple[WeightInput, ...]] = MappingProxyType(
    {
        **dict.fromkeys(RECURRENT, _RECURRENT),
        "com.microsoft::Attention": _PROJECTIONS,
    }
)
"""Operators with weights that compute in float, whatever their weights are stored in."""

_TABLE = WeightInput(0, 0, 1)


def is_embedding(node: ir.Node) -> bool:
    """Whether a node picks rows of a constant table by computed numbers."""
    if operator_name(node) != "Gather" or node.attributes.get_int("axis", 0) != 0:
        return False
    return _is_float_matrix(node, 0) and len(constant_shape(node.inputs[0]) or ()) == 2


def weight_inputs(node: ir.Node, operators: Operators = OPERATORS) -> tuple[WeightInput, ...]:
    """Return the constant float matrices, or kernels, that a node multiplies or looks up; none if empty."""
    found: tuple[WeightInput, ...] = ()
    if is_embedding(node):
        found = (_TABLE,)
    elif operator_name(node) in IN_FLOAT:
        found = IN_FLOAT[operator_name(node)]
    else:
        row, traits = linear_operator(node), traits_of(node, operators)
        if row is not None:
            reduced = row.reduced_axis(node) if row.is_matrix else None
            found = (WeightInput(1, row.channel_axis(node), reduced),)
        elif traits is not None and traits.weight is not None:
            found = (WeightInput(traits.weight, traits.channel_axis(node), None),)
    return tuple(weight for weight in found if _is_float_matrix(node, weight.index))


def multiplied_weights(node: ir.Node) -> list[tuple[ir.Value, LinearLayer | str]]:
    """Return the constants that a node multiplies its inputs by, with their geometry or why it is not known."""
    if operator_name(node) in RECURRENT:
        found = [node.inputs[weight.index] for weight in weight_inputs(node)]
        return [(v, _directions(constant_shape(v) or (0, 0, 0))) for v in found if v is not None]
    weight = node.inputs[1] if has_constant_weight(node) else None
    return [] if weight is None else [(weight, layer_of(node))]


def _directions(shape: tuple[int, ...]) -> LinearLayer:
    """Return the geometry of a recurrent layer's weight: one matrix for each direction."""
    groups, outputs, inputs = shape
    one = (1,)
    return ConvLayer(
        groups=groups,
        outputs=outputs,
        inputs=inputs,
        window=one,
        strides=one,
        dilations=one,
        pads=(0, 0),
    )


def _is_float_matrix(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = constant_shape(value)
    is_float = value is not None and value.dtype == ir.DataType.FLOAT
    return is_float and shape is not None and len(shape) > 1 and 0 not in shape
