"""Every rule, against differences of what onnxruntime computes."""

from __future__ import annotations

import pytest
from helpers.gradient_checks import check_gradient, graph_of

from lowbit.ops.backward import ARITHMETIC_RULES, BACKWARD
from lowbit.ops.backward_movement import MOVEMENT_RULES

# What computes y of x: each operator with a rule, and ways of it that differ.
GRAPHS = {
    "Relu": "y = Relu(x)",
    "Clip": "y = Clip(x, low, high)",
    "Clip without a bound": "y = Clip(x, low)",
    "LeakyRelu": "y = LeakyRelu<alpha = 0.3>(x)",
    "PRelu": "y = PRelu(x, slopes)",
    "Sigmoid": "y = Sigmoid(x)",
    "Tanh": "y = Tanh(x)",
    "HardSigmoid": "y = HardSigmoid<alpha = 0.3, beta = 0.4>(x)",
    "HardSwish": "y = HardSwish(x)",
    "Erf": "y = Erf(x)",
    "Gelu": "y = Gelu(x)",
    "Softmax": "y = Softmax<axis = 1>(x)",
    "Neg": "y = Neg(x)",
    "Abs": "y = Abs(x)",
    "Exp": "y = Exp(x)",
    "Log": "p = Exp(x) y = Log(p)",
    "Sqrt": "p = Exp(x) y = Sqrt(p)",
    "Reciprocal": "p = Exp(x) y = Reciprocal(p)",
    "Pow": "y = Pow(x, two)",
    "Pow of three": "y = Pow(x, three)",
    "Add": "y = Add(x, x)",
    "Add of channels": "y = Add(channels, x)",
    "Sum": "e = Exp(x) y = Sum(x, e, x)",
    "Sub": "e = Exp(x) y = Sub(e, x)",
    "Mul": "e = Exp(x) y = Mul(e, x)",
    "Mul by a mean": "m = GlobalAveragePool(x) y = Mul(m, x)",
    "Div": "e = Exp(x) y = Div(x, e)",
    "Max": "n = Neg(x) y = Max(x, n)",
    "Min": "n = Neg(x) y = Min(x, n)",
    "Where": "p = Greater(x, two) e = Exp(x) y = Where(p, x, e)",
    "LayerNormalization": "y = LayerNormalization<axis = -1>(x, gamma)",
    "Conv": "y = Conv<pads = [1, 1, 1, 1]>(x, dense)",
    "Conv with strides": "y = Conv<strides = [2, 2], pads = [1, 0, 0, 1]>(x, dense)",
    "Conv that leaves the last rows out": "y = Conv<strides = [3, 2]>(x, two_by_two)",
    "Conv with dilations": "y = Conv<dilations = [2, 2], pads = [2, 2, 2, 2]>(x, dense)",
    "Conv of channels": "y = Conv<group = 4, strides = [2, 1], pads = [1, 1, 1, 1]>(x, depthwise)",
    "Conv in groups": "y = Conv<group = 2>(x, grouped)",
    "ConvTranspose": "y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, dense)",
    "MatMul": "y = MatMul(x, square)",
    "MatMul from the left": "y = MatMul(square, x)",
    "MatMul of two": "t = Transpose<perm = [0, 1, 3, 2]>(x) y = MatMul(x, t)",
    "Gemm": "f = Flatten<axis = 3>(x) y = Gemm<alpha = 0.5>(f, square)",
    "Gemm turned": "f = Flatten<axis = 3>(x) y = Gemm<transB = 1>(f, square)",
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_gradient_tells_what_a_small_change_does(name: str) -> None:
    check_gradient(GRAPHS[name])


def test_every_rule_is_tried() -> None:
    tried = {node.op_type for body in GRAPHS.values() for node in graph_of(body).graph.node}

    assert tried >= set(ARITHMETIC_RULES)


def test_no_operator_has_two_rules() -> None:
    assert len(BACKWARD) == len(ARITHMETIC_RULES) + len(MOVEMENT_RULES)
