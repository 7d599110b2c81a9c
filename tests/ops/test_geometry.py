"""Patches times weights must be what onnxruntime computes, at any position and on average."""

import numpy as np
import onnx_ir as ir
import pytest
from helpers.layer_models import LAYER_CASES, layer_model, random_array

from lowbit.graph.session import session
from lowbit.ops.linear import LAYERS, layer_of


@pytest.mark.parametrize("case", LAYER_CASES)
def test_patches_times_weights_are_the_output(case):
    op, x_shape, shapes, attributes = LAYER_CASES[case]
    _check(op, random_array(*x_shape), [random_array(*s) for s in shapes], attributes, bias=0.0)


@pytest.mark.parametrize("op", ["InstanceNormalization", "LayerNormalization"])
def test_a_normalization_is_a_factor_for_each_channel(op):
    x = random_array(2, 6, 5, 4) * 3 + 1
    shape = (6,) if op == "InstanceNormalization" else (5, 4)
    attributes = {} if op == "InstanceNormalization" else {"axis": 2}
    bias = random_array(*shape)
    _check(op, x, [random_array(*shape), bias], attributes, bias=bias.reshape(-1, 1, 1))


def _check(op, x, weights, attributes, bias):
    model, node = layer_model(op, x, weights, attributes)
    with session(model) as running:
        (y,) = running.run(["y"], {"x": x})
    layer = layer_of(node)
    count = layer.count(y.shape)
    matrix = layer.matrix(weights[0])
    everywhere = np.arange(count)
    targets = layer.values(y, everywhere)
    patches = layer.patches(x, everywhere, y.shape)
    np.testing.assert_allclose(matrix @ patches + bias, targets, rtol=1e-4, atol=1e-4)
    some = np.sort(np.random.default_rng(3).choice(count, min(3, count), replace=False))
    np.testing.assert_array_equal(layer.patches(x, some, y.shape), patches[:, :, some])
    sums = layer.patch_sums(x, y.shape)
    np.testing.assert_allclose(sums, patches.sum(axis=2), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(layer.weight(matrix), weights[0])


def _geometry(case):
    op, x_shape, shapes, attributes = LAYER_CASES[case]
    weight = random_array(*shapes[0])
    model, node = layer_model(op, random_array(*x_shape), [weight], attributes)
    return model, node, weight


@pytest.mark.parametrize("case", LAYER_CASES)
def test_a_kernel_is_a_view_of_the_weights(case):
    """What is scaled in it is scaled in the weights."""
    _, node, weight = _geometry(case)
    layer = layer_of(node)
    kernel = layer.kernel(weight)
    assert kernel.shape == (layer.groups, layer.outputs, layer.inputs, layer.taps)
    assert np.shares_memory(kernel, weight)
    np.testing.assert_array_equal(kernel.reshape(layer.matrix(weight).shape), layer.matrix(weight))


@pytest.mark.parametrize("case", LAYER_CASES)
def test_numbers_of_input_channels_are_spread_to_the_weights_that_multiply_them(case):
    """With only one channel fed, what is left of the weights is what has its number."""
    model, node, weight = _geometry(case)
    layer = layer_of(node)
    channels = layer.groups * layer.inputs
    spread = layer.spread(np.arange(channels, dtype=np.float32))
    assert spread.shape == weight.shape
    axis = LAYERS[node.op_type].input_axis(node)
    shape = LAYER_CASES[case][1]
    x = random_array(*shape)
    for channel in range(channels):
        alone = np.zeros_like(x)
        at = [slice(None)] * x.ndim
        at[axis] = channel
        alone[tuple(at)] = x[tuple(at)]
        others = np.where(spread == channel, 0, weight).astype(np.float32)
        model.graph.initializers["w0"].const_value = ir.tensor(others, name="w0")
        with session(model) as running:
            (y,) = running.run(["y"], {"x": alone})
        assert not y.any()
    assert set(spread.reshape(-1)) == set(range(channels))


@pytest.mark.parametrize("case", ["conv1d", "grouped", "transposed", "gemm", "matmul"])
def test_the_mean_output_is_that_of_a_constant_input(case):
    """Away from borders every output sees the whole kernel."""
    model, node, weight = _geometry(case)
    layer = layer_of(node)
    axis = LAYERS[node.op_type].input_axis(node)
    means = np.random.default_rng(5).normal(size=layer.groups * layer.inputs)
    shape = [1] * len(LAYER_CASES[case][1])
    shape[axis] = -1
    size = list(LAYER_CASES[case][1])
    if len(size) > 2 and axis == 1:
        size[2:] = [40] * len(size[2:])
    x = np.broadcast_to(means.reshape(shape), size).astype(np.float32)
    model.graph.inputs[0].shape = ir.Shape(x.shape)
    with session(model) as running:
        (y,) = running.run(["y"], {"x": x})
    if axis == 1 and y.ndim > 2:
        inner = y[(slice(None), slice(None), *[slice(8, 12)] * (y.ndim - 2))]
        found = inner.mean(axis=(0, *range(2, y.ndim)))
    else:
        found = y.reshape(-1, y.shape[-1]).mean(axis=0)
    expected = layer.mean_output(weight.astype(np.float64), means)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "attributes", "meets_all", "share"),
    [
        ("Conv", {}, True, 1.0),
        ("Conv", {"pads": [1, 0, 0, 0]}, False, 1.0),
        ("Conv", {"pads": [0, 0, 0, 1]}, False, 1.0),
        ("Conv", {"auto_pad": "VALID"}, True, 1.0),
        ("Conv", {"auto_pad": "SAME_LOWER"}, False, 1.0),
        ("ConvTranspose", {}, False, 1.0),
        ("ConvTranspose", {"strides": [2, 3]}, False, 1 / 6),
    ],
)
def test_which_weights_meet_the_input_everywhere(op, attributes, meets_all, share):
    _, node = layer_model(op, random_array(1, 3, 6, 6), [random_array(3, 3, 2, 2)], attributes)
    layer = layer_of(node)
    assert layer.meets_all == meets_all
    assert layer.tap_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("op", "attributes", "why"),
    [
        ("Conv", {"auto_pad": "SAME_UPPER"}, "its padding depends on the input"),
        ("ConvTranspose", {"output_shape": [9, 9]}, "its padding depends on the output"),
        ("Conv", {"auto_pad": "VALID"}, None),
        ("Conv", {"pads": [1, 1, 1, 1]}, None),
    ],
)
def test_a_layer_whose_patches_are_not_known_says_why(op, attributes, why):
    """Its weights are understood all the same."""
    _, node = layer_model(op, random_array(1, 3, 5, 5), [random_array(3, 3, 3, 3)], attributes)
    layer = layer_of(node)
    assert layer.no_patches == why
    assert layer.depth == 27
