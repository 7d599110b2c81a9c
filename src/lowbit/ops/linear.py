"""Linear layers: operators that multiply what they read by weights. One row for each operator.

A row says how its geometry follows from a node and the shape of its weight, and where channels lie.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import onnx_ir as ir

from lowbit.graph.editing import constant_shape
from lowbit.graph.naming import operator_name
from lowbit.ops.geometry import (
    ConvLayer,
    LinearLayer,
    MatrixLayer,
    NormLayer,
    TransposedConvLayer,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinearOperator:
    """The traits of an operator with weights that follow from its node alone.

    Attributes:
        make: Returns the layer's geometry from its node and the shape of its weight, or why not.
        channel_axis: Where the output channels lie in the weight.
        reduced_axis: Where the inputs lie in the weight: what is summed over.
        input_axis: Where the channels that are summed over lie in the input.
        output_axis: Where the channels lie in the output.
        bias: Which input is the bias, if there can be one.
        bias_factor: What the bias is multiplied by.
        bias_repeats: How often a scale per channel of the weight is repeated along the bias.
        is_matrix: Whether the weight is a matrix, which may have a scale for groups of its inputs.
        is_norm: Whether it multiplies each channel by one weight, after a normalization.
    """

    make: Callable[[ir.Node, tuple[int, ...]], LinearLayer | str]
    channel_axis: Callable[[ir.Node], int]
    reduced_axis: Callable[[ir.Node], int]
    input_axis: Callable[[ir.Node], int] = lambda _: 1
    output_axis: int = 1
    bias: int | None = 2
    bias_factor: Callable[[ir.Node], float] = lambda _: 1.0
    bias_repeats: Callable[[ir.Node], int] = lambda _: 1
    is_matrix: bool = False
    is_norm: bool = False


def _transposed(node: ir.Node, name: str) -> bool:
    return node.attributes.get_int(name, 0) != 0


def _make_conv(node: ir.Node, shape: tuple[int, ...]) -> LinearLayer | str:
    return ConvLayer(**_window(node, shape), outputs=shape[0] // _group(node), inputs=shape[1])


def _make_transposed_conv(node: ir.Node, shape: tuple[int, ...]) -> LinearLayer | str:
    return TransposedConvLayer(
        **_window(node, shape), outputs=shape[1], inputs=shape[0] // _group(node)
    )


def _group(node: ir.Node) -> int:
    return node.attributes.get_int("group", 1)


def has_explicit_padding(node: ir.Node) -> bool:
    """Whether the padding of a convolution or pool does not depend on the size of its input."""
    return node.attributes.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")


def _window(node: ir.Node, shape: tuple[int, ...]) -> dict[str, Any]:
    attributes, rank = node.attributes, len(shape) - 2
    unknown = None
    if not has_explicit_padding(node):
        unknown = "its padding depends on the input"
    elif "output_shape" in attributes:
        unknown = "its padding depends on the output"
    return {
        "groups": _group(node),
        "taps": math.prod(shape[2:]),
        "window": shape[2:],
        "strides": tuple(attributes.get_ints("strides", (1,) * rank)),
        "dilations": tuple(attributes.get_ints("dilations", (1,) * rank)),
        "pads": tuple(attributes.get_ints("pads", (0,) * (2 * rank))),
        "unknown_padding": unknown,
    }


def _make_gemm(node: ir.Node, shape: tuple[int, ...]) -> LinearLayer | str:
    if _transposed(node, "transA"):
        return "its input is transposed"
    transposed = _transposed(node, "transB")
    outputs, inputs = shape if transposed else shape[::-1]
    alpha = node.attributes.get_float("alpha", 1.0)
    return MatrixLayer(groups=1, outputs=outputs, inputs=inputs, transposed=transposed, alpha=alpha)


def _make_matmul(_: ir.Node, shape: tuple[int, ...]) -> LinearLayer | str:
    if len(shape) != 2:
        return "its weight is not a matrix"
    return MatrixLayer(groups=1, outputs=shape[1], inputs=shape[0], transposed=False)


def _make_norm(node: ir.Node, shape: tuple[int, ...]) -> LinearLayer | str:
    last = node.op_type == "LayerNormalization"
    return NormLayer(
        groups=math.prod(shape),
        outputs=1,
        inputs=1,
        axes=tuple(range(-len(shape), 0)) if last else (),
        epsilon=node.attributes.get_float("epsilon", 1e-5),
        last=last,
        shape=shape,
    )


LAYERS: Mapping[str, LinearOperator] = MappingProxyType(
    {
        "Conv": LinearOperator(make=_make_conv, channel_axis=lambda _: 0, reduced_axis=lambda _: 1),
        "ConvTranspose": LinearOperator(
            make=_make_transposed_conv,
            channel_axis=lambda _: 1,
            reduced_axis=lambda _: 0,
            bias_repeats=_group,
        ),
        "Gemm": LinearOperator(
            make=_make_gemm,
            channel_axis=lambda node: 0 if _transposed(node, "transB") else 1,
            reduced_axis=lambda node: 1 if _transposed(node, "transB") else 0,
            input_axis=lambda node: 0 if _transposed(node, "transA") else 1,
            output_axis=-1,
            bias_factor=lambda node: node.attributes.get_float("beta", 1.0),
            is_matrix=True,
        ),
        "MatMul": LinearOperator(
            make=_make_matmul,
            channel_axis=lambda _: -1,
            reduced_axis=lambda _: -2,
            input_axis=lambda _: -1,
            output_axis=-1,
            bias=None,
            is_matrix=True,
        ),
        "InstanceNormalization": LinearOperator(
            make=_make_norm, channel_axis=lambda _: 0, reduced_axis=lambda _: 0, is_norm=True
        ),
        "LayerNormalization": LinearOperator(
            make=_make_norm,
            channel_axis=lambda _: 0,
            reduced_axis=lambda _: 0,
            output_axis=-1,
            is_norm=True,
        ),
    }
)
"""Every operator whose weights can be refined."""

LINEAR = tuple(name for name, row in LAYERS.items() if not row.is_norm)
"""The linear layers: a product of weights and input."""


def weighted_operator(node: ir.Node) -> LinearOperator | None:
    """Return the row of a linear layer or a normalization, or ``None`` for any other node."""
    return LAYERS.get(operator_name(node))


def linear_operator(node: ir.Node) -> LinearOperator | None:
    """Return the row of a linear layer, or ``None`` for any other node."""
    row = weighted_operator(node)
    return None if row is None or row.is_norm else row


def layer_of(node: ir.Node) -> LinearLayer | str:
    """Return the geometry of a node with a constant weight, or why it is not known."""
    row = weighted_operator(node)
    if row is None:
        return f"{node.op_type} is not an operator with weights"
    shape = constant_shape(node.inputs[1]) if len(node.inputs) > 1 else None
    if shape is None:
        return "its weight is not a constant of known shape"
    return row.make(node, shape)


def has_constant_weight(node: ir.Node) -> bool:
    """Whether a node is a linear layer with a constant weight."""
    return (
        linear_operator(node) is not None
        and len(node.inputs) > 1
        and constant_shape(node.inputs[1]) is not None
    )
