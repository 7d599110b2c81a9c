"""Patches times weights must be what onnxruntime computes, at any position and on average."""

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.session import session
from lowbit.ops.linear import layer_of

RANDOM = np.random.default_rng(7)


def _model(op, x, weights, attributes, opset=17):
    value = ir.val("x", ir.DataType.FLOAT, x.shape)
    constants = [
        ir.Value(name=f"w{i}", const_value=ir.tensor(w, name=f"w{i}"), shape=ir.Shape(w.shape))
        for i, w in enumerate(weights)
    ]
    node = ir.node(op, [value, *constants], attributes, name="node")
    node.outputs[0].name = "y"
    graph = ir.Graph(
        [value], [node.outputs[0]], nodes=[node], initializers=constants, opset_imports={"": opset}
    )
    return ir.Model(graph, ir_version=9), node


def _random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


CASES = {
    "conv": ("Conv", (2, 6, 9, 8), [(4, 6, 3, 3)], {"pads": [1, 1, 1, 1]}),
    "strided": ("Conv", (1, 3, 11, 8), [(4, 3, 3, 2)], {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    "dilated": (
        "Conv",
        (1, 3, 12, 12),
        [(4, 3, 3, 3)],
        {"dilations": [2, 3], "pads": [2, 3, 1, 0]},
    ),
    "grouped": ("Conv", (1, 6, 7, 7), [(4, 3, 3, 3)], {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (1, 6, 7, 7), [(6, 1, 3, 3)], {"group": 6, "strides": [2, 2]}),
    "conv1d": ("Conv", (2, 4, 15), [(3, 4, 5)], {"pads": [2, 2], "strides": [2]}),
    "conv3d": ("Conv", (1, 2, 5, 6, 7), [(3, 2, 2, 3, 2)], {"pads": [1, 1, 1, 0, 1, 0]}),
    "transposed": (
        "ConvTranspose",
        (2, 4, 5, 6),
        [(4, 3, 3, 3)],
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
    ),
    "transposed groups": (
        "ConvTranspose",
        (1, 4, 5, 6),
        [(4, 3, 2, 4)],
        {"group": 2, "strides": [3, 1], "dilations": [2, 1]},
    ),
    "gemm": ("Gemm", (5, 7), [(7, 3)], {"alpha": 0.5}),
    "gemm transposed": ("Gemm", (5, 7), [(3, 7)], {"transB": 1}),
    "matmul": ("MatMul", (2, 5, 7), [(7, 3)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_patches_times_weights_are_the_output(case):
    op, x_shape, shapes, attributes = CASES[case]
    _check(op, _random(*x_shape), [_random(*s) for s in shapes], attributes, bias=0.0)


@pytest.mark.parametrize("op", ["InstanceNormalization", "LayerNormalization"])
def test_a_normalization_is_a_factor_for_each_channel(op):
    x = _random(2, 6, 5, 4) * 3 + 1
    shape = (6,) if op == "InstanceNormalization" else (5, 4)
    attributes = {} if op == "InstanceNormalization" else {"axis": 2}
    bias = _random(*shape)
    _check(op, x, [_random(*shape), bias], attributes, bias=bias.reshape(-1, 1, 1))


def _check(op, x, weights, attributes, bias):
    model, node = _model(op, x, weights, attributes)
    with session(model) as running:
        (y,) = running.run(["y"], {"x": x})
    layer = layer_of(node)
    count = layer.count(y.shape)
    matrix = layer.matrix(weights[0])
    everywhere = np.arange(count)
    targets = layer.values(y, everywhere)
    patches = layer.patches(x, everywhere, y.shape)
    np.testing.assert_allclose(matrix @ patches + bias, targets, rtol=1e-4, atol=1e-4)
    some = np.sort(RANDOM.choice(count, min(3, count), replace=False))
    np.testing.assert_array_equal(layer.patches(x, some, y.shape), patches[:, :, some])
    sums = layer.patch_sums(x, y.shape)
    np.testing.assert_allclose(sums, patches.sum(axis=2), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(layer.weight(matrix), weights[0])


@pytest.mark.parametrize(
    ("attributes", "why"),
    [({"auto_pad": "SAME_UPPER"}, "depends on the input")],
)
def test_a_layer_that_is_not_understood_says_why(attributes, why):
    _, node = _model("Conv", _random(1, 3, 5, 5), [_random(2, 3, 3, 3)], attributes)
    assert why in layer_of(node)
