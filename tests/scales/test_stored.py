"""What is stored of constants and biases: the nearest integers, or floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from lowbit.config.config import QuantConfig
from lowbit.config.specs import BLOCKS, AccumulatorBias, FloatSpec, IntegerSpec, Rule, Spec
from lowbit.numerics.affine import dequantize
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.scales.stored import nearest

_GEMM = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2] x) => (float[1,3] y)
<float[2,3] w = {1.0, 2.0, -3.0, 0.25, -0.5, 0.125}, float[3] b = {4.0, -2.0, 1.0}>
{ y = Gemm <beta = 0.5> (x, w, b) }
"""
_CONFIG = QuantConfig(
    activation=IntegerSpec(format=IntegerFormat.INT8),
    weight=IntegerSpec(format=IntegerFormat.INT8, per_channel=True),
    bias=AccumulatorBias(),
    head="int8",
)


def test_every_constant_is_rounded_to_its_nearest_code(solve_text: Callable) -> None:
    state = solve_text(_GEMM, _CONFIG)

    weights = nearest(state.adapted, state.plan, state.params)

    params = state.params.tensors["w"]
    original = state.adapted.graph.initializers["w"].const_value.numpy()
    error = np.abs(dequantize(weights.tensors["w"](), params) - original)
    assert (error <= params.scale / 2 * (1 + 1e-6)).all()


def test_the_integers_of_a_bias_stand_for_the_bias_times_beta(solve_text: Callable) -> None:
    state = solve_text(_GEMM, _CONFIG)

    weights = nearest(state.adapted, state.plan, state.params)

    row = state.plan.biases[0]
    params = state.params.biases[row.node]
    np.testing.assert_allclose(
        dequantize(weights.biases[row.node], params), [2.0, -1.0, 0.5], atol=params.scale.max()
    )


def test_replaced_bias_values_are_what_is_stored(solve_text: Callable) -> None:
    state = solve_text(_GEMM, _CONFIG)
    row = state.plan.biases[0]
    values = np.array([1.0, 1.0, 1.0], np.float32)

    params = dataclasses.replace(state.params, bias_values={row.node: values})
    weights = nearest(state.adapted, state.plan, params)

    np.testing.assert_allclose(
        dequantize(weights.biases[row.node], params.biases[row.node]),
        values,
        atol=params.biases[row.node].scale.max(),
    )


@pytest.mark.parametrize("spec", [BLOCKS["MX6"], FloatSpec(format=FloatFormat.FLOAT16)])
def test_constants_of_other_formats_are_kept_as_their_floats(
    solve_text: Callable, spec: Spec
) -> None:
    """They are rounded by the model itself, or when they are written."""
    state = solve_text(_GEMM, QuantConfig(activation=None, weight=spec, target="ryzen-ai-float"))

    stored = nearest(state.adapted, state.plan, state.params)

    original = state.adapted.graph.initializers["w"].const_value.numpy()
    np.testing.assert_array_equal(stored.tensors["w"](), original)
    assert stored.tensors["w"]().dtype == np.float32
    assert stored.biases == {}


def test_integers_and_other_formats_are_stored_side_by_side(solve_text: Callable) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2] x) => (float[1,2] y)
    <float[2,2] w = {1.0, 2.0, -3.0, 0.25}, float[2,2] v = {0.1, 0.2, 0.3, 0.4}> {
        m = MatMul(x, w)
        y = MatMul(m, v)
    }"""
    config = QuantConfig(
        activation=None,
        weight=IntegerSpec(format=IntegerFormat.INT8),
        rules=(Rule(name="y", weight=FloatSpec(format=FloatFormat.BFLOAT16)),),
        target="ryzen-ai-float",
    )

    state = solve_text(text, config)

    stored = nearest(state.adapted, state.plan, state.params).tensors
    assert stored["w"]().tolist() == [[42, 85], [-127, 11]]
    np.testing.assert_array_equal(stored["v"](), np.array([[0.1, 0.2], [0.3, 0.4]], np.float32))


def test_constants_are_made_anew_on_every_call(solve_text: Callable) -> None:
    """So that memory holds one constant at a time."""
    state = solve_text(_GEMM, _CONFIG)
    make = nearest(state.adapted, state.plan, state.params).tensors["w"]

    first, second = make(), make()

    assert first is not second
    np.testing.assert_array_equal(first, second)


_CONCAT = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,2,4,4] x) => (float[1,4,4,4] y, float[1,2,4,4] z)
<float[2,2,1,1] w = {1.0, -2.0, 3.0, 0.5}, float[2] b = {0.517, -0.533},
 float[2,2,1,1] v = {4.0, -2.0, 3.0, 5.0}>
{
    a = Conv <kernel_shape = [1, 1]> (x, w)
    d = Conv <kernel_shape = [1, 1]> (x, v)
    y = Concat <axis = 1> (a, d)
    z = Conv <kernel_shape = [1, 1]> (a, w, b)
}
"""


@pytest.mark.parametrize("truncate", [False, True])
def test_biases_are_carried_over_from_before_an_alignment_if_asked_to(
    solve_text: Callable, truncate: bool
) -> None:
    """The scale of ``a`` grows to that of ``y``: rounded at the old one, truncated at the new."""
    spec = IntegerSpec(format=IntegerFormat.INT8)
    config = QuantConfig(
        activation=spec,
        weight=spec,
        bias=AccumulatorBias(format=IntegerFormat.INT16, truncate_realigned=truncate),
        head="int8",
        target="ryzen-ai",
    )

    state = solve_text(_CONCAT, config)

    (row,) = state.plan.biases
    old, new = state.params.biases_before[row.node], state.params.biases[row.node]
    assert float(new.scale) > float(old.scale)
    bias = np.array([0.517, -0.533])
    expected = np.rint(bias / float(new.scale))
    if truncate:
        expected = np.trunc(np.rint(bias / float(old.scale)) * float(old.scale) / float(new.scale))
    found = nearest(state.adapted, state.plan, state.params).biases[row.node]
    np.testing.assert_array_equal(found, expected)
