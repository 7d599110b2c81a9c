"""Activations must be onnxruntime's, their gradients those of small differences."""

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.graph.session import session
from lowbit.ops.activations import (
    ACTIVATIONS,
    FUSED_ACTIVATIONS,
    NONE,
    activation_of,
    is_scale_invariant,
)

CASES = {
    "Relu": ("Relu", {}),
    "Sigmoid": ("Sigmoid", {}),
    "Tanh": ("Tanh", {}),
    "LeakyRelu": ("LeakyRelu", {"alpha": 0.2}),
    "Gelu": ("Gelu", {}),
    "Gelu by tanh": ("Gelu", {"approximate": "tanh"}),
    "Clip": ("Clip", {}),
    "PRelu": ("PRelu", {}),
    "Softmax": ("Softmax", {"axis": -1}),
}


def _node(op, attributes, constants=None):
    x = ir.val("x", ir.DataType.FLOAT, (7, 5))
    if constants is None and op == "Clip":
        constants = [np.float32(-0.5), np.float32(1.25)]
    elif constants is None and op == "PRelu":
        constants = [np.linspace(0.1, 0.9, 5, dtype=np.float32)]
    constants = constants or []
    values = [
        ir.Value(name=f"k{i}", const_value=ir.tensor(c), shape=ir.Shape(np.shape(c)))
        for i, c in enumerate(constants)
    ]
    node = ir.node(op, [x, *values], attributes, name="a")
    node.outputs[0].name = "y"
    graph = ir.Graph(
        [x], [node.outputs[0]], nodes=[node], initializers=values, opset_imports={"": 20}
    )
    return ir.Model(graph, ir_version=9), node


def test_every_activation_of_the_table_is_tried():
    assert {op for op, _ in CASES.values()} == set(ACTIVATIONS)


@pytest.mark.parametrize("case", CASES)
def test_forwards_and_backwards(case):
    model, node = _node(*CASES[case])
    z = np.random.default_rng(0).normal(0, 1.5, (7, 5)).astype(np.float32)
    with session(model) as running:
        (want,) = running.run(["y"], {"x": z})
    activation = activation_of(node, last_axis=True)
    columns = z.T[None]
    y = activation.apply(columns)
    np.testing.assert_allclose(y[0].T, want, rtol=1e-5, atol=1e-6)
    weight = np.random.default_rng(1).standard_normal(columns.shape)
    gradient = activation.back(columns, y, weight.astype(np.float32))
    wide = columns.astype(np.float64)
    for at in [(0, 1, 2), (0, 4, 6), (0, 0, 0)]:
        step = np.zeros_like(wide)
        step[at] = 1e-5
        up, down = activation.apply(wide + step), activation.apply(wide - step)
        slope = float(np.sum(weight * (up - down)) / 2e-5)
        assert gradient[at] == pytest.approx(slope, abs=2e-3)


def test_a_clip_whose_bounds_are_computed_is_no_activation():
    x, low = (ir.val(name, ir.DataType.FLOAT, ()) for name in ("x", "low"))
    assert activation_of(ir.node("Clip", [x, low]), last_axis=False) is None


def test_nothing_is_an_activation_as_well():
    z, gradient = np.ones((1, 2, 3)), np.full((1, 2, 3), 5.0)
    np.testing.assert_array_equal(NONE.apply(z), z)
    np.testing.assert_array_equal(NONE.back(z, z, gradient), gradient)


def test_a_slope_for_all_channels_is_a_leaky_relu():
    _, node = _node("PRelu", {}, [np.float32([0.25])])
    activation = activation_of(node, last_axis=False)
    z = np.float32([[[-4.0, 8.0]], [[2.0, -2.0]]])
    np.testing.assert_array_equal(activation.apply(z), [[[-1.0, 8.0]], [[2.0, -0.5]]])


@pytest.mark.parametrize(
    ("axis", "last_axis", "known"),
    [(-1, True, True), (2, True, True), (1, True, False), (-1, False, False)],
)
def test_softmax_is_known_where_it_goes_over_the_channels(axis, last_axis, known):
    x = ir.val("x", ir.DataType.FLOAT, (1, 4, 3))
    node = ir.node("Softmax", [x], {"axis": axis})
    assert (activation_of(node, last_axis=last_axis) is not None) == known


def test_only_activations_that_depend_on_other_outputs_couple_channels():
    coupling = {
        op for op, attributes in CASES.values() if _activation(op, attributes).couples_channels
    }
    # A PRelu does not, but its slopes are those of all outputs.
    assert coupling == {"Softmax", "PRelu"}


def _activation(op, attributes):
    return activation_of(_node(op, attributes)[1], last_axis=True)


def test_operators_of_other_domains_are_no_activations():
    x = ir.val("x", ir.DataType.FLOAT, (1, 4))
    assert activation_of(ir.node("Relu", [x], domain="my.own"), last_axis=True) is None
    assert activation_of(ir.node("Add", [x, x]), last_axis=True) is None
    assert not is_scale_invariant(ir.node("Relu", [x], domain="my.own"))
    assert is_scale_invariant(ir.node("Relu", [x]))


def _clip(*bounds):
    """Return a Clip; a bound is a number, ``None`` for none, or "computed"."""
    inputs, stored = [ir.val("x", ir.DataType.FLOAT, (3,))], []
    for name, bound in zip(("low", "high"), bounds, strict=False):
        value = None if bound is None else ir.val(name, ir.DataType.FLOAT, ())
        if isinstance(bound, float):
            value.const_value = ir.tensor(np.float32(bound), name=name)
            stored.append(value)
        inputs.append(value)
    node = ir.node("Clip", inputs)
    ir.Graph([inputs[0]], node.outputs, nodes=[node], initializers=stored)
    return node


@pytest.mark.parametrize(
    ("bounds", "passes"),
    [
        ((), True),
        ((0.0,), True),
        ((0.0, 6.0), True),
        ((0.0, None), True),
        ((None, 6.0), False),
        ((-1.0, 1.0), False),
        ((0.0, -1.0), False),
        ((0.0, "computed"), False),
        (("computed",), False),
    ],
)
def test_a_factor_passes_a_clip_at_zero(bounds, passes):
    assert is_scale_invariant(_clip(*bounds)) == passes


@pytest.mark.parametrize("case", [c for c in CASES if c != "Clip"])
def test_a_positive_factor_passes_what_is_scale_invariant_and_nothing_else(case):
    """A Clip's channels are scaled only as far as its upper bound lets them: see above."""
    _, node = _node(*CASES[case])
    activation = activation_of(node, last_axis=True)
    z = np.random.default_rng(2).normal(0, 1.5, (1, 5, 7))
    factor = np.float64(3.5)
    same = np.allclose(activation.apply(z * factor), activation.apply(z) * factor)
    assert is_scale_invariant(node) == same


def test_targets_compute_what_bends_at_zero_together_with_the_layer():
    assert set(FUSED_ACTIVATIONS) == {"Relu", "LeakyRelu", "PRelu", "Clip"}
