"""Gradients of operators, as nodes: one table of backward rules.

onnxruntime has no gradients. They are added to the forward graph as ordinary operators, so that
a plain session computes them. A rule gets the gradients of a node's outputs and returns that of one input,
or ``None`` where it is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import onnx_ir as ir

from lowbit.graph.editing import constant, scalar
from lowbit.ops.backward_graph import BackwardGraph, known_sizes
from lowbit.ops.backward_movement import MOVEMENT_RULES, Rule
from lowbit.ops.traits import clip_bounds

_EPSILON = 1e-5
_STEEP = 2.0**100


def _one(rule: Callable[[BackwardGraph, ir.Node, ir.Value], ir.Value | None]) -> Rule:
    """Return the rule of an operator with one input that counts and one output."""

    def found(
        to: BackwardGraph, node: ir.Node, index: int, gradients: Sequence[ir.Value | None]
    ) -> ir.Value | None:
        gradient = gradients[0]
        return None if index != 0 or gradient is None else rule(to, node, gradient)

    return found


def _any(rule: Callable[[BackwardGraph, ir.Node, int, ir.Value], ir.Value | None]) -> Rule:
    """Return the rule of an operator with one output, any of whose inputs may count."""

    def found(
        to: BackwardGraph, node: ir.Node, index: int, gradients: Sequence[ir.Value | None]
    ) -> ir.Value | None:
        gradient = gradients[0]
        return None if gradient is None else rule(to, node, index, gradient)

    return found


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"node {node.name!r} has no input {index}")
    return value


# Activations, by their result where that is enough.


def _relu(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    # A very steep one is a step, for which onnxruntime takes a seventh of the time of a sign.
    step = to.node("HardSigmoid", node.outputs[0], alpha=_STEEP, beta=0.0)
    return to.node("Mul", gradient, step)


def _clip(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    # By the result: what is clipped need not be kept then, and may be fused with the layer before.
    y, (low, high) = node.outputs[0], clip_bounds(node)
    if low is None or high is None:
        inside = to.node("Equal", _input(node, 0), y)
    else:
        inside = _between(to, y, low, high)
    return to.node("Mul", gradient, to.node("Cast", inside, to=ir.DataType.FLOAT))


def _between(to: BackwardGraph, y: ir.Value, low: float, high: float) -> ir.Value:
    """Return where numbers are between two others."""
    return to.node(
        "And", to.node("Greater", y, to.number(low)), to.node("Less", y, to.number(high))
    )


def _slopes(to: BackwardGraph, node: ir.Node, gradient: ir.Value, slope: ir.Value) -> ir.Value:
    """Return the gradient of what has another slope below zero."""
    is_positive = to.node("Greater", _input(node, 0), to.number(0.0))
    return to.node("Where", is_positive, gradient, to.node("Mul", gradient, slope))


def _leaky_relu(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    return _slopes(to, node, gradient, to.number(node.attributes.get_float("alpha", 0.01)))


def _prelu(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    return _slopes(to, node, gradient, _input(node, 1))


def _sigmoid(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    y = node.outputs[0]
    return to.node("Mul", gradient, to.node("Sub", y, to.node("Mul", y, y)))


def _tanh(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    y = node.outputs[0]
    return to.node("Mul", gradient, to.node("Sub", to.number(1.0), to.node("Mul", y, y)))


def _hard_sigmoid(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    slope = node.attributes.get_float("alpha", 0.2)
    return to.node("Mul", gradient, _ramp(to, node.outputs[0], slope))


def _ramp(to: BackwardGraph, y: ir.Value, slope: float) -> ir.Value:
    """Return the slope of what rises from 0 to 1, by its result."""
    inside = _between(to, y, 0.0, 1.0)
    return to.node("Mul", to.node("Cast", inside, to=ir.DataType.FLOAT), to.number(slope))


def _hard_swish(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    x = _input(node, 0)
    gate = to.node("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    slope = to.node("Add", gate, to.node("Mul", x, _ramp(to, gate, 1 / 6)))
    return to.node("Mul", gradient, slope)


def _erf(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    x = _input(node, 0)
    bell = to.node("Exp", to.node("Neg", to.node("Mul", x, x)))
    return to.node("Mul", gradient, to.node("Mul", bell, to.number(2 / math.sqrt(math.pi))))


def _gelu(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    # That of the exact one also where a tanh approximates it: they differ by a thousandth.
    x = _input(node, 0)
    half = to.node("Erf", to.node("Mul", x, to.number(math.sqrt(0.5))))
    below = to.node("Mul", to.node("Add", half, to.number(1.0)), to.number(0.5))
    bell = to.node("Exp", to.node("Mul", to.node("Mul", x, x), to.number(-0.5)))
    density = to.node("Mul", to.node("Mul", x, bell), to.number(1 / math.sqrt(2 * math.pi)))
    return to.node("Mul", gradient, to.node("Add", below, density))


def _softmax(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value | None:
    if to.opset < 13:
        return None
    y, axis = node.outputs[0], node.attributes.get_int("axis", -1)
    total = to.sum(to.node("Mul", gradient, y), (axis,))
    return to.node("Mul", y, to.node("Sub", gradient, total))


# Arithmetic.


def _add(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    return to.unbroadcast(gradient, _input(node, index), node.outputs[0])


def _sub(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    found = gradient if index == 0 else to.node("Neg", gradient)
    return to.unbroadcast(found, _input(node, index), node.outputs[0])


def _mul(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    found = to.node("Mul", gradient, _input(node, 1 - index))
    return to.unbroadcast(found, _input(node, index), node.outputs[0])


def _div(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    found = to.node("Div", gradient, _input(node, 1))
    if index == 1:
        found = to.node("Neg", to.node("Mul", found, node.outputs[0]))
    return to.unbroadcast(found, _input(node, index), node.outputs[0])


def _extreme(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    x = _input(node, index)
    chosen = to.node("Cast", to.node("Equal", x, node.outputs[0]), to=ir.DataType.FLOAT)
    return to.unbroadcast(to.node("Mul", gradient, chosen), x, node.outputs[0])


def _where(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    if index == 0:
        return None
    pair = (gradient, to.number(0.0)) if index == 1 else (to.number(0.0), gradient)
    found = to.node("Where", _input(node, 0), *pair)
    return to.unbroadcast(found, _input(node, index), node.outputs[0])


def _pow(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value | None:
    power = scalar(node.inputs[1])
    if power is None:
        return None
    x = _input(node, 0)
    lower = x if power == 2 else to.node("Pow", x, to.number(power - 1))
    return to.node("Mul", gradient, to.node("Mul", lower, to.number(power)))


def _sqrt(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    return to.node("Div", gradient, to.node("Mul", node.outputs[0], to.number(2.0)))


def _reciprocal(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value:
    y = node.outputs[0]
    return to.node("Neg", to.node("Mul", gradient, to.node("Mul", y, y)))


def _normalization(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value | None:
    x = _input(node, 0)
    if node.attributes.get_int("axis", -1) not in (-1, len(x.shape or ()) - 1):
        return None
    epsilon = to.number(node.attributes.get_float("epsilon", _EPSILON))
    centred = to.node("Sub", x, to.mean(x, (-1,)))
    spread = to.node(
        "Sqrt", to.node("Add", to.mean(to.node("Mul", centred, centred), (-1,)), epsilon)
    )
    unit = to.node("Div", centred, spread)
    scaled = to.node("Mul", gradient, _input(node, 1))
    along = to.node("Mul", unit, to.mean(to.node("Mul", scaled, unit), (-1,)))
    rest = to.node("Sub", to.node("Sub", scaled, to.mean(scaled, (-1,))), along)
    return to.node("Div", rest, spread)


# Linear layers.


def _conv(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value | None:
    weight = constant(node.inputs[1])
    sizes = known_sizes(_input(node, 0)), known_sizes(node.outputs[0])
    if weight is None or any(size is None for known in sizes for size in (known or [None])[2:]):
        return None
    return to.convolved_back(gradient, weight, node, (sizes[0] or [])[2:], (sizes[1] or [])[2:])


def _conv_transpose(to: BackwardGraph, node: ir.Node, gradient: ir.Value) -> ir.Value | None:
    known = {"strides", "pads", "dilations", "group", "kernel_shape"}
    if constant(node.inputs[1]) is None or "output_shape" in node.attributes:
        return None
    if node.attributes.get_string("auto_pad", "NOTSET") != "NOTSET":
        return None
    same = {name: value for name, value in node.attributes.items() if name in known}
    return to.node("Conv", gradient, _input(node, 1), **same)


def _matmul(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    x, other = _input(node, index), _input(node, 1 - index)
    if x.shape is None or other.shape is None or min(len(x.shape), len(other.shape)) < 2:
        return None
    transposed = to.transposed(other)
    pair = (gradient, transposed) if index == 0 else (transposed, gradient)
    found = to.node("MatMul", *pair)
    return to.reduced_like(found, x, rank=max(len(x.shape), len(other.shape)))


def _gemm(to: BackwardGraph, node: ir.Node, index: int, gradient: ir.Value) -> ir.Value | None:
    attributes = node.attributes
    if index != 0 or attributes.get_int("transA", 0) != 0:
        return None
    weight = _input(node, 1)
    transposed = weight if attributes.get_int("transB", 0) != 0 else to.transposed(weight)
    found = to.node("MatMul", gradient, transposed)
    alpha = attributes.get_float("alpha", 1.0)
    return found if alpha == 1 else to.node("Mul", found, to.number(alpha))


ARITHMETIC_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "Relu": _one(_relu),
        "Clip": _one(_clip),
        "LeakyRelu": _one(_leaky_relu),
        "PRelu": _one(_prelu),
        "Sigmoid": _one(_sigmoid),
        "Tanh": _one(_tanh),
        "HardSigmoid": _one(_hard_sigmoid),
        "HardSwish": _one(_hard_swish),
        "Erf": _one(_erf),
        "Gelu": _one(_gelu),
        "Softmax": _one(_softmax),
        "Neg": _one(lambda to, node, gradient: to.node("Neg", gradient)),
        "Abs": _one(
            lambda to, node, gradient: to.node("Mul", gradient, to.node("Sign", node.inputs[0]))
        ),
        "Exp": _one(lambda to, node, gradient: to.node("Mul", gradient, node.outputs[0])),
        "Log": _one(lambda to, node, gradient: to.node("Div", gradient, node.inputs[0])),
        "Sqrt": _one(_sqrt),
        "Reciprocal": _one(_reciprocal),
        "Pow": _one(_pow),
        "Add": _any(_add),
        "Sum": _any(_add),
        "Sub": _any(_sub),
        "Mul": _any(_mul),
        "Div": _any(_div),
        "Max": _any(_extreme),
        "Min": _any(_extreme),
        "Where": _any(_where),
        "LayerNormalization": _one(_normalization),
        "Conv": _one(_conv),
        "ConvTranspose": _one(_conv_transpose),
        "MatMul": _any(_matmul),
        "Gemm": _any(_gemm),
    }
)

"""The rules of operators that compute with numbers."""

BACKWARD: Mapping[str, Rule] = MappingProxyType({**ARITHMETIC_RULES, **MOVEMENT_RULES})
"""The rule of each operator of ONNX's own domain that has one."""
