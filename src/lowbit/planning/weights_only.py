"""Which weights are quantized where activations are not, or only when the model runs.

Those that take space: weights of linear and recurrent layers, tables of embeddings. Parameters of
normalizations, biases and single numbers stay in float.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import onnx_ir as ir

from lowbit.graph.editing import constant_shape
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.ops.traits import Operators, OpTraits, traits_of
from lowbit.ops.weights import IN_FLOAT, RECURRENT, WeightInput, is_embedding, weight_inputs
from lowbit.planning.exact_inputs import feeds_pole
from lowbit.planning.requests import Placement, Request
from lowbit.planning.rules import Scheme
from lowbit.targets.target import Target

# A table of a few rows, such as one for two kinds of tokens, gains nothing and is read everywhere.
_FEWEST_IN_TABLE = 1024

_READ_AT_POLE = (
    "a logarithm or reciprocal reads it, and would make much of a small error of its input"
)


def is_weight_only(scheme: Scheme) -> bool:
    """Whether a node's activations have no scales that calibration finds."""
    return scheme.activation is None or scheme.activation.is_dynamic


def place_weights(
    placement: Placement,
    node: ir.Node,
    scheme: Scheme,
    target: Target,
    weights: Sequence[WeightInput],
    operators: Operators,
) -> None:
    """Request the weights of one node, and its input where its scale is found at run time."""
    if weights and not _takes(node, target):
        placement.float_why[node] = f"{target.name} does not run {node.op_type} quantized"
        return
    if is_embedding(node) and _size(node, weights[0]) < _FEWEST_IN_TABLE:
        placement.float_why[node] = f"its table has fewer than {_FEWEST_IN_TABLE} numbers"
        return
    if not weights or scheme.weight is None:
        placement.float_why[node] = "it has no weights"
        return
    # onnxruntime fuses a product with quantized weights, and rounds its input to 8 bits, block by block.
    if scheme.priority == 0 and feeds_pole(node, operators):
        placement.float_why[node] = _READ_AT_POLE
        return
    placement.active[node] = traits_of(node, operators) or OpTraits()
    is_dynamic = _takes_dynamic(node, scheme, target)
    for weight in weights:
        _place_weight(placement, node, weight, scheme)
    if is_dynamic:
        _place_input(placement, node, scheme)


def place_dequantized(placement: Placement, node: ir.Node, scheme: Scheme, target: Target) -> bool:
    """Request the weights of a node that computes in float next to quantized ones; return whether it has any.

    What is dequantized may have a scale for each channel at no cost.
    """
    spec = scheme.weight
    if operator_name(node) not in IN_FLOAT or not target.dequantizes or scheme.excluded is not None:
        return False
    if spec is None or not spec.is_integer:
        return False
    if target.per_channel and scheme.priority == 0:
        spec = spec.with_scales_per_channel()
    weights = weight_inputs(node)
    for weight in weights:
        _place_weight(placement, node, weight, dataclasses.replace(scheme, weight=spec))
    return bool(weights)


def _takes(node: ir.Node, target: Target) -> bool:
    name = operator_name(node)
    if name in IN_FLOAT:
        return target.dequantizes
    return target.every_operator or name in target.operators


def _size(node: ir.Node, weight: WeightInput) -> int:
    return math.prod(constant_shape(node.inputs[weight.index]) or (0,))


def _takes_dynamic(node: ir.Node, scheme: Scheme, target: Target) -> bool:
    """Whether the target computes the node in integers with a scale found at run time."""
    is_dynamic = scheme.activation is not None and scheme.activation.is_dynamic
    if not is_dynamic or operator_name(node) not in target.dynamic:
        return False
    if operator_name(node) in RECURRENT:
        first = node.attributes.get_int("layout", 0) == 0
        return first and len(weight_inputs(node)) == len(IN_FLOAT[operator_name(node)])
    shape = constant_shape(node.inputs[1])
    return shape is not None and len(shape) == 2


def _place_weight(placement: Placement, node: ir.Node, weight: WeightInput, scheme: Scheme) -> None:
    value = node.inputs[weight.index]
    if value is None or scheme.weight is None:
        return
    name = tensor_name(value)
    if name in placement.weights:
        return
    shape = constant_shape(value) or ()
    spec, axis = scheme.weight.along(
        shape, reduced=weight.reduced_axis, channel=weight.channel_axis
    )
    what = "table" if weight.index == 0 else "weight"
    why = f"{what} of {node.op_type} {node.name}"
    placement.weights[name] = Request(spec, scheme.priority, why)
    if axis is not None:
        placement.channel_axis[name] = axis


def _place_input(placement: Placement, node: ir.Node, scheme: Scheme) -> None:
    value = node.inputs[0]
    if value is None or scheme.activation is None:
        return
    placement.request(value, scheme, node, "input")
