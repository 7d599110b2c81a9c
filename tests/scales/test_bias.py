"""Biases in the accumulator's scale: they fit, or the weight's scale is repaired."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.config.methods import MinMax
from lowbit.config.specs import AccumulatorBias, BiasSpec, IntegerSpec
from lowbit.numerics.affine import QParams, dequantize, range_qparams
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning.plan import BiasPlan
from lowbit.scales.bias import bias_integers, bias_params, repaired_weight

_BIAS = np.array([0.5, -1.25, 3.0, 0.0], np.float32)


def _row(spec: BiasSpec, repeats: int = 1) -> BiasPlan:
    return BiasPlan(
        node="n", tensor="b", index=2, spec=spec, input="x", weight="w", repeats=repeats, why=""
    )


def _tensors(source: float, weight: float | list[float], axis: int | None = None) -> dict:
    scale = np.asarray(weight, np.float32)
    zero = np.zeros(scale.shape, np.int8)
    return {
        "x": QParams(np.asarray(source, np.float32), np.int8(0), IntegerFormat.INT8),
        "w": QParams(scale, zero, IntegerFormat.INT8, axis),
    }


def _back(bias: np.ndarray, row: BiasPlan, tensors: dict) -> np.ndarray:
    params = bias_params(bias, row, tensors)
    return dequantize(bias_integers(bias, row, params, None), params)


def test_an_accumulator_bias_has_the_scale_of_the_accumulator() -> None:
    params = bias_params(_BIAS, _row(AccumulatorBias()), _tensors(0.5, 0.25))

    assert float(params.scale) == 0.125
    assert params.format is IntegerFormat.INT32
    assert params.axis is None


def test_per_channel_weights_give_each_bias_its_own_scale() -> None:
    tensors = _tensors(0.5, [1.0, 0.5, 0.25, 2.0], axis=0)

    params = bias_params(_BIAS, _row(AccumulatorBias()), tensors)

    assert params.scale.tolist() == [0.5, 0.25, 0.125, 1.0]
    assert params.axis == 0


def test_grouped_transposed_convolutions_repeat_their_scales() -> None:
    tensors = _tensors(1.0, [0.5, 0.25], axis=1)

    params = bias_params(_BIAS, _row(AccumulatorBias(), repeats=2), tensors)

    assert params.scale.tolist() == [0.5, 0.25, 0.5, 0.25]


@pytest.mark.parametrize("fmt", [IntegerFormat.INT32, IntegerFormat.INT16, IntegerFormat.INT8])
@pytest.mark.parametrize("weight", [1e-12, 1e-7, 0.01])
def test_repair_makes_every_bias_fit(fmt: IntegerFormat, weight: float) -> None:
    row, tensors = _row(AccumulatorBias(format=fmt)), _tensors(0.01, weight)

    grown = repaired_weight(_BIAS, row, tensors)

    if grown is not None:
        tensors["w"] = grown
    back = _back(_BIAS, row, tensors)
    step = float(bias_params(_BIAS, row, tensors).scale)
    assert np.abs(back - _BIAS).max() <= step * 0.51 + 1e-6
    assert repaired_weight(_BIAS, row, tensors) is None


def test_repair_per_channel_touches_only_the_channels_in_need() -> None:
    row = _row(AccumulatorBias())
    tensors = _tensors(1e-3, [1e-12, 1.0, 1.0, 1e-12], axis=0)

    grown = repaired_weight(_BIAS, row, tensors)

    assert grown is not None
    assert grown.scale[0] > 1e-9
    assert grown.scale[1:].tolist() == tensors["w"].scale[1:].tolist()


def test_repair_of_grouped_transposed_convolutions_serves_all_groups() -> None:
    row = _row(AccumulatorBias(), repeats=2)
    tensors = _tensors(1e-3, [1e-12, 1e-12], axis=1)

    grown = repaired_weight(_BIAS, row, tensors)

    assert grown is not None
    tensors["w"] = grown
    back = _back(_BIAS, row, tensors)
    assert np.abs(back - _BIAS).max() < 1e-5


def test_repair_keeps_powers_of_two_if_asked_to() -> None:
    grown = repaired_weight(
        _BIAS, _row(AccumulatorBias()), _tensors(2.0**-20, 2.0**-30), power_of_two=True
    )

    assert grown is not None
    assert np.frexp(grown.scale)[0] == 0.5


def test_products_too_small_for_a_float_are_repaired_too() -> None:
    row, tensors = _row(AccumulatorBias()), _tensors(1e-25, 1e-20)

    grown = repaired_weight(_BIAS, row, tensors)

    assert grown is not None
    tensors["w"] = grown
    assert np.abs(_back(_BIAS, row, tensors) - _BIAS).max() < 1e-5


def test_without_repair_a_bias_saturates() -> None:
    row, tensors = _row(AccumulatorBias(repair=False)), _tensors(1e-5, 1e-9)

    assert repaired_weight(_BIAS, row, tensors) is None
    codes = bias_integers(_BIAS, row, bias_params(_BIAS, row, tensors), None)
    assert codes.tolist() == [2**31 - 1, -(2**31), 2**31 - 1, 0]


def test_a_vanishing_product_never_gives_a_scale_of_zero() -> None:
    row = _row(AccumulatorBias(repair=False))

    params = bias_params(_BIAS, row, _tensors(1e-30, 1e-30))

    assert float(params.scale) > 0
    assert bias_integers(_BIAS, row, params, None)[3] == 0


@pytest.mark.parametrize("fmt", [IntegerFormat.INT8, IntegerFormat.INT16])
def test_a_bias_with_its_own_scale_is_quantized_like_a_weight(fmt: IntegerFormat) -> None:
    spec = IntegerSpec(format=fmt, method=MinMax())
    row = _row(spec)

    params = bias_params(_BIAS, row, {})

    assert params == range_qparams(-3.0, 3.0, fmt, symmetric=True)
    codes = bias_integers(_BIAS, row, params, None)
    assert np.abs(dequantize(codes, params) - _BIAS).max() <= float(params.scale) / 2
    assert repaired_weight(_BIAS, row, {}) is None


def test_biases_are_truncated_if_asked_to_when_an_alignment_moved_the_input() -> None:
    row = _row(AccumulatorBias(truncate_realigned=True))
    before = bias_params(_BIAS, row, _tensors(0.1, 0.01))
    after = bias_params(_BIAS, row, _tensors(0.13, 0.01))

    codes = bias_integers(_BIAS, row, after, before)

    first = np.rint(_BIAS.astype(np.float64) / before.scale)
    expected = np.trunc(first * before.scale / after.scale)
    np.testing.assert_array_equal(codes, expected.astype(np.int32))
    nearest = bias_integers(_BIAS, _row(AccumulatorBias()), after, before)
    np.testing.assert_array_equal(nearest, np.rint(_BIAS.astype(np.float64) / after.scale))


def test_a_single_number_is_spread_over_per_channel_scales() -> None:
    tensors = _tensors(0.5, [1.0, 0.5, 0.25, 2.0], axis=1)
    row, bias = _row(AccumulatorBias()), np.array([1.0], np.float32)

    np.testing.assert_allclose(_back(bias, row, tensors), 1.0)
