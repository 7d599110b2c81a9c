"""Activations: their functions, forwards and backwards, and what passes through them. One table.

Values are groups x outputs x positions of a layer's output; arrays may be NumPy's or PyTorch's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from lowbit.graph.editing import constant, is_constant, scalar
from lowbit.numerics.array_api import array_namespace
from lowbit.ops.traits import clip_bounds

Array = Any
_FAR = 3.4e38


@dataclasses.dataclass(frozen=True, slots=True)
class Activation:
    """A function of a layer's output.

    ``apply`` gives the result; ``back`` takes values, results and the gradient of results, and
    gives that of values. ``couples_channels``: whether a result depends on other outputs of its position.
    """

    name: str
    apply: Callable[[Array], Array]
    back: Callable[[Array, Array, Array], Array]
    couples_channels: bool = False


def _between(low: Any, high: Any) -> Activation:
    def apply(z: Array) -> Array:
        xp = array_namespace(z)
        return xp.minimum(xp.maximum(z, low), high)

    def back(z: Array, y: Array, gradient: Array) -> Array:
        del y
        return gradient * _as(z, (z > low) & (z < high))

    return Activation("Clip", apply, back)


def _leaky(slope: Any) -> Activation:
    def factor(z: Array) -> Array:
        inside = _as(z, z < 0)
        return 1.0 + inside * (slope - 1.0)

    return Activation("LeakyRelu", lambda z: z * factor(z), lambda z, y, g: g * factor(z))


def _prelu(slopes: np.ndarray[Any, Any]) -> Activation:
    def shaped(z: Array) -> Array:
        xp = array_namespace(z)
        values = slopes if slopes.size > 1 else np.full(z.shape[0] * z.shape[1], slopes)
        return xp.reshape(xp.asarray(values, dtype=z.dtype), (z.shape[0], z.shape[1], 1))

    def factor(z: Array) -> Array:
        return 1.0 + _as(z, z < 0) * (shaped(z) - 1.0)

    return Activation(
        "PRelu", lambda z: z * factor(z), lambda z, y, g: g * factor(z), couples_channels=True
    )


def _sigmoid(z: Array) -> Array:
    xp = array_namespace(z)
    return 0.5 * (xp.tanh(0.5 * z) + 1.0)


def _tanh(z: Array) -> Array:
    return array_namespace(z).tanh(z)


def _erf(xp: Any, z: Array) -> Array:
    """Abramowitz and Stegun 7.1.26, within 1.5e-7: the array API has no erf."""
    t = 1.0 / (1.0 + 0.3275911 * xp.abs(z))
    series = 1.061405429 * t - 1.453152027
    for factor in (1.421413741, -0.284496736, 0.254829592):
        series = series * t + factor
    return xp.sign(z) * (1.0 - series * t * xp.exp(-z * z))


def _gelu(*, by_tanh: bool) -> Activation:
    root = math.sqrt(2 / math.pi)

    def cdf(z: Array) -> Array:
        xp = array_namespace(z)
        if by_tanh:
            return 0.5 * (1.0 + xp.tanh(root * (z + 0.044715 * z * z * z)))
        return 0.5 * (1.0 + _erf(xp, z / math.sqrt(2)))

    def back(z: Array, y: Array, gradient: Array) -> Array:
        del y
        xp = array_namespace(z)
        density = xp.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        return gradient * (cdf(z) + z * density)

    return Activation("Gelu", lambda z: z * cdf(z), back)


def _softmax() -> Activation:
    def apply(z: Array) -> Array:
        xp = array_namespace(z)
        power = xp.exp(z - xp.max(z, axis=1, keepdims=True))
        return power / xp.sum(power, axis=1, keepdims=True)

    def back(z: Array, y: Array, gradient: Array) -> Array:
        xp = array_namespace(z)
        return y * (gradient - xp.sum(gradient * y, axis=1, keepdims=True))

    return Activation("Softmax", apply, back, couples_channels=True)


NONE = Activation("none", lambda z: z, lambda z, y, g: g)


@dataclasses.dataclass(frozen=True, slots=True)
class ActivationOperator:
    """The traits of an activation's operator.

    Attributes:
        make: Returns the function of a node, or ``None`` if it is not known; the second argument says
            whether the channels lie on the last axis.
        scale_invariant: Whether a positive factor on a channel passes through a node.
        fused: Whether targets compute it together with the layer before it.
    """

    make: Callable[[ir.Node, bool], Activation | None]
    scale_invariant: Callable[[ir.Node], bool] = lambda _: False
    fused: bool = False


def _make_relu(_: ir.Node, last: bool) -> Activation:  # noqa: FBT001
    del last
    return _between(0.0, _FAR)


def _make_leaky(node: ir.Node, last: bool) -> Activation:  # noqa: FBT001
    del last
    return _leaky(node.attributes.get_float("alpha", 0.01))


def _make_gelu(node: ir.Node, last: bool) -> Activation:  # noqa: FBT001
    del last
    return _gelu(by_tanh=node.attributes.get_string("approximate", "none") == "tanh")


def _make_prelu(node: ir.Node, last: bool) -> Activation | None:  # noqa: FBT001
    del last
    slopes = constant(node.inputs[1])
    return None if slopes is None else _prelu(slopes.reshape(-1))


def _make_softmax(node: ir.Node, last: bool) -> Activation | None:  # noqa: FBT001
    over_channels = last and node.attributes.get_int("axis", -1) in (-1, _rank(node) - 1)
    return _softmax() if over_channels else None


def _make_clip(node: ir.Node, last: bool) -> Activation | None:  # noqa: FBT001
    del last
    bounds = []
    for index, default in ((1, -_FAR), (2, _FAR)):
        value = node.inputs[index] if len(node.inputs) > index else None
        bound = default if value is None else scalar(value)
        if bound is None:
            return None
        bounds.append(bound)
    return _between(*bounds)


def _rank(node: ir.Node) -> int:
    value = node.inputs[0]
    return len(value.shape) if value is not None and value.shape is not None else 0


def _as(like: Array, mask: Array) -> Array:
    return array_namespace(like).astype(mask, like.dtype)


def _clips_at_zero(node: ir.Node) -> bool:
    """Whether a Clip's lower bound is zero, and its upper one known and positive, if it has them."""
    low, high = clip_bounds(node)
    if low is None and high is None:
        return not any(value is not None for value in node.inputs[1:])
    known_high = high is not None or len(node.inputs) < 3 or node.inputs[2] is None
    return low == 0 and known_high and (high is None or high > 0)


_SIGMOID = Activation("Sigmoid", _sigmoid, lambda z, y, g: g * y * (1.0 - y))
_TANH = Activation("Tanh", _tanh, lambda z, y, g: g * (1.0 - y * y))

ACTIVATIONS: Mapping[str, ActivationOperator] = MappingProxyType(
    {
        "Relu": ActivationOperator(_make_relu, lambda _: True, fused=True),
        "LeakyRelu": ActivationOperator(_make_leaky, lambda _: True, fused=True),
        "PRelu": ActivationOperator(
            _make_prelu, lambda node: is_constant(node.inputs[1]), fused=True
        ),
        "Clip": ActivationOperator(_make_clip, _clips_at_zero, fused=True),
        "Sigmoid": ActivationOperator(lambda node, last: _SIGMOID),
        "Tanh": ActivationOperator(lambda node, last: _TANH),
        "Gelu": ActivationOperator(_make_gelu),
        "Softmax": ActivationOperator(_make_softmax),
    }
)

FUSED_ACTIVATIONS = tuple(name for name, row in ACTIVATIONS.items() if row.fused)
"""The activations that targets compute together with the layer before them."""


def activation_of(node: ir.Node, *, last_axis: bool) -> Activation | None:
    """Return the activation a node is, or ``None``.

    ``last_axis`` says whether the layer's channels lie on the last axis, where Softmax couples them.
    """
    row = ACTIVATIONS.get(node.op_type) if node.domain == "" else None
    return None if row is None else row.make(node, last_axis)


def is_scale_invariant(node: ir.Node) -> bool:
    """Whether a node is an activation that a positive factor on a channel passes through."""
    row = ACTIVATIONS.get(node.op_type) if node.domain == "" else None
    return row is not None and row.scale_invariant(node)
