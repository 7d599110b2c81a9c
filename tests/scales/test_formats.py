"""Scales and values of what does not become integers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.methods import Percentile
from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec, MxSpec, Spec, TensorOverride
from lowbit.errors import ModelError
from lowbit.numerics.blocks import Element, round_bfp, round_mx
from lowbit.numerics.formats import FloatFormat, IntegerFormat, rounded
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.formats import float_scales, rounded_values, storable_values

_SCALED = FloatSpec(format=FloatFormat.BFLOAT16, scaled=True)
_PLAIN = FloatSpec(format=FloatFormat.BFLOAT16)
_TEXT = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2] x) => (float[1,2] y) <float[2,2] w = {8, -2, 1, 4}> {
        m = MatMul(x, w)
        t = Transpose <perm = [0, 1]> (m)
        y = Tanh(t)
    }"""


def _config(spec: FloatSpec, *overrides: TensorOverride) -> QuantConfig:
    return QuantConfig(
        activation=spec, weight=spec, bias=spec, target="ryzen-ai-float", tensors=overrides
    )


def test_scaled_tensors_are_scaled_to_their_peak(solve_text) -> None:
    state = solve_text(_TEXT, _config(_SCALED))

    scales = state.params.scales
    assert scales["w"] == 4.0, "the largest weight is 8, and bfloat16 is scaled to 2"
    seen = state.stats["m"]
    assert scales["m"] == pytest.approx(max(-seen.low, seen.high) / 2)
    assert scales["t"] == scales["m"], "a transposed tensor has the numbers of the other"
    assert state.params.tensors == {}


def test_unscaled_tensors_need_no_statistics(solve_text) -> None:
    state = solve_text(_TEXT, _config(_PLAIN))

    assert state.plan.observed() == ()
    assert state.stats.samples == 0
    assert state.params.scales == {}


def test_a_fixed_range_is_taken_as_it_is(solve_text) -> None:
    state = solve_text(_TEXT, _config(_SCALED, TensorOverride(tensor="x", range=(-3.0, 12.0))))

    assert state.params.scales["x"] == 6.0
    assert "x" not in state.stats.tensors


def test_a_percentile_clips_outliers_of_scaled_tensors(solve_text) -> None:
    spec = FloatSpec(format=FloatFormat.FLOAT16, scaled=True, method=Percentile(percentile=90.0))

    state = solve_text(_TEXT, _config(spec), samples=300)

    seen = state.stats["x"]
    assert state.params.scales["x"] < 0.8 * max(-seen.low, seen.high) / 65504


def test_integers_have_no_float_scale(solve_text) -> None:
    integer = IntegerSpec(format=IntegerFormat.INT8)

    state = solve_text(_TEXT, _config(_SCALED, TensorOverride(tensor="x", spec=integer)))

    assert "x" in state.params.tensors
    assert "x" not in state.params.scales
    assert "m" in state.params.scales


def test_a_constant_of_zeros_or_nothing_has_scale_one() -> None:
    for values in ([0.0, 0.0], []):
        model, row = _constant(values, _SCALED)
        plan = Plan(preset="p", target="t", tensors=(row,))

        assert float_scales(model, plan, Stats({})) == {"w": 1.0}


def _constant(values: list[float], spec: Spec = _PLAIN) -> tuple[ir.Model, TensorPlan]:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1] x) => (float[1] y) '
        f"<float[{len(values)}] w = {{{', '.join('0' for _ in values)}}}> {{ y = Add(x, w) }}"
    )
    model = ir.from_onnx_text(text)
    # Older versions of onnx cannot read a denormal number in a text.
    model.graph.initializers["w"].const_value = ir.tensor(np.array(values, np.float32), name="w")
    row = TensorPlan(name="w", role="weight", spec=spec, leader="w", observe="w", why="")
    return model, row


def test_constants_stay_within_the_normal_numbers_of_bfloat16() -> None:
    values = storable_values(*_constant([3.4e38, -3.4e38, 1e-40, 0.0, 1.5]))

    largest, smallest = np.float32(3.38953139e38), np.finfo(np.float32).tiny
    np.testing.assert_array_equal(values, np.array([largest, -largest, smallest, 0, 1.5], "f4"))


def test_not_a_number_is_refused() -> None:
    model, row = _constant([1.0])
    model.graph.initializers["w"].const_value = ir.tensor(np.array([np.nan], np.float32))

    with pytest.raises(ModelError, match="'w' holds NaN"):
        storable_values(model, row)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (FloatSpec(format=FloatFormat.FLOAT16), [65504.0, -65504.0, 1e-40, 1.5]),
        (FloatSpec(format=FloatFormat.FLOAT16, scaled=True), [1e6, -1e6, 1e-40, 1.5]),
        (BLOCKS["MX9"], [1e6, -1e6, 1e-40, 1.5]),
    ],
)
def test_what_the_format_scales_or_holds_is_stored_as_it_is(
    spec: Spec, expected: list[float]
) -> None:
    values = storable_values(*_constant([1e6, -1e6, 1e-40, 1.5], spec))

    np.testing.assert_array_equal(values, np.array(expected, np.float32))


def test_a_constant_without_data_is_named() -> None:
    model, row = _constant([1.0])
    model.graph.initializers["w"].const_value = None

    with pytest.raises(ValueError, match="lists 'w' as a constant, but it has no data"):
        storable_values(model, row)


_VALUES = np.random.default_rng(5).normal(size=(3, 40)).astype(np.float32) * 10


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_rounded_along_their_axis(name: str, axis: int) -> None:
    spec = BLOCKS[name]

    found = rounded_values(_VALUES, spec, axis)

    if isinstance(spec, MxSpec):
        expected = round_mx(_VALUES, axis, element=spec.element)
    else:
        expected = round_bfp(_VALUES, axis, bits=spec.bits, block=spec.block, pairs=spec.pairs)
    np.testing.assert_array_equal(found, expected)
    assert (found != _VALUES).any()


def test_floats_are_rounded_at_their_scale() -> None:
    spec = FloatSpec(format=FloatFormat.FLOAT16, scaled=True)

    found = rounded_values(_VALUES, spec, None, 1e-6)

    np.testing.assert_array_equal(found, rounded(_VALUES, FloatFormat.FLOAT16, 1e-6))
    assert np.abs(found).max() == pytest.approx(65504e-6)


def test_mx_integers_of_one_block_are_steps_of_its_power_of_two() -> None:
    """By hand: the largest is 3, so the step is 2 / 64."""
    x = np.array([3.0, 0.02, -0.2], np.float32)

    found = rounded_values(x, MxSpec(element=Element.INT8), 0)

    np.testing.assert_array_equal(found * 32, [96, 1, -6])
