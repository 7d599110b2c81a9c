"""What a row says of its operator is what onnxruntime computes."""

import numpy as np
import onnx_ir as ir
import pytest
from helpers.layer_models import LAYER_CASES, layer_model, random_array

from lowbit.graph.session import session
from lowbit.ops.linear import LAYERS, LINEAR, has_constant_weight, layer_of, linear_operator


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "why"),
    [
        ("Gemm", (3, 5), {"transA": 1}, "its input is transposed"),
        ("MatMul", (2, 3, 5), {}, "its weight is not a matrix"),
        ("Add", (3, 5), {}, "Add is not an operator with weights"),
    ],
)
def test_a_layer_that_is_not_understood_says_why(op, shape, attributes, why):
    _, node = layer_model(op, random_array(3, 3), [random_array(*shape)], attributes)
    assert layer_of(node) == why


def test_a_weight_that_is_computed_is_no_layer():
    x, w = ir.val("x", ir.DataType.FLOAT, (2, 3)), ir.val("w", ir.DataType.FLOAT, (3, 4))
    node = ir.node("MatMul", [x, w])
    assert layer_of(node) == "its weight is not a constant of known shape"
    assert linear_operator(node) is LAYERS["MatMul"]
    assert not has_constant_weight(node)


def test_operators_of_other_domains_are_no_layers():
    _, node = layer_model("MatMul", random_array(2, 3), [random_array(3, 4)], {})
    assert has_constant_weight(node)
    other = ir.node("MatMul", node.inputs, domain="my.own")
    assert linear_operator(other) is None
    assert not has_constant_weight(other)
    assert layer_of(other) == "MatMul is not an operator with weights"


def test_normalizations_have_weights_but_are_no_linear_layers():
    assert LINEAR == ("Conv", "ConvTranspose", "Gemm", "MatMul")
    _, node = layer_model("LayerNormalization", random_array(2, 3), [random_array(3)], {})
    assert linear_operator(node) is None
    assert layer_of(node).groups == 3


@pytest.mark.parametrize("case", [c for c in LAYER_CASES if c != "matmul"])
def test_the_axes_of_each_operator_are_where_onnx_puts_them(case):
    """A bias of its own for each channel moves the output channel that the row says."""
    op, x_shape, shapes, attributes = LAYER_CASES[case]
    row = LAYERS[op]
    if op == "Gemm":
        attributes = {**attributes, "beta": 0.5}
    weight = random_array(*shapes[0])
    _, node = layer_model(op, random_array(*x_shape), [weight], attributes)
    layer = layer_of(node)
    factor = row.bias_factor(node)
    assert factor == (0.5 if op == "Gemm" else 1.0)
    assert weight.shape[row.channel_axis(node)] * row.bias_repeats(node) == layer.channels
    assert weight.shape[row.reduced_axis(node)] in (layer.inputs, layer.inputs * layer.groups)
    assert x_shape[row.input_axis(node)] == layer.inputs * layer.groups
    bias = np.arange(layer.channels, dtype=np.float32)
    x = np.zeros(x_shape, np.float32)
    model, _ = layer_model(op, x, [weight, bias], attributes)
    with session(model) as running:
        (y,) = running.run(["y"], {"x": x})
    moved = np.moveaxis(y, row.output_axis, -1)
    np.testing.assert_array_equal(moved, np.broadcast_to(bias * factor, moved.shape))
