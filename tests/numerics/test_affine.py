"""Affine quantization by its properties: range, saturation, ties, and ONNX's formulas."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.numerics.affine import (
    QParams,
    dequantize,
    power_of_two_qparams,
    quantize,
    range_qparams,
)
from lowbit.numerics.formats import IntegerFormat

_FORMATS = [f for f in IntegerFormat if f is not IntegerFormat.INT32]
_ENDS = st.floats(-(2.0**100), 2.0**100, width=32)
_CALM = settings(max_examples=200, deadline=None, derandomize=True)
_TINY = float(np.finfo(np.float32).tiny)


def _code_range(params: QParams, *, symmetric: bool, reduced: bool) -> tuple[float, float]:
    low, high = params.format.limits(symmetric=symmetric, reduce_range=reduced)
    scale, zero = float(params.scale), int(params.zero_point)
    return (low - zero) * scale, (high - zero) * scale


@_CALM
@given(
    ends=st.tuples(_ENDS, _ENDS).map(sorted),
    fmt=st.sampled_from(_FORMATS),
    symmetric=st.booleans(),
    reduced=st.booleans(),
    where=st.lists(st.floats(0, 1), min_size=1, max_size=30),
)
def test_values_in_range_come_back_within_half_a_step_and_zero_exactly(
    ends: list[float], fmt: IntegerFormat, symmetric: bool, reduced: bool, where: list[float]
) -> None:
    low, high = ends
    params = range_qparams(low, high, fmt, symmetric=symmetric, reduce_range=reduced)
    limits = fmt.limits(symmetric=symmetric, reduce_range=reduced)
    x = np.array([low + (high - low) * w for w in where] + [0.0], np.float32)
    x = np.clip(x, np.float32(min(0, low)), np.float32(max(0, high)))

    codes = quantize(x, params, limits)
    back = dequantize(codes, params).astype(np.float64)

    step = float(params.scale)
    assert codes.dtype == fmt.dtype
    assert limits[0] <= codes.min()
    assert codes.max() <= limits[1]
    assert back[-1] == 0.0
    if step != 1.0 or max(abs(low), abs(high)) > _TINY * 127:
        # Single precision adds a few units in the last place to half a step.
        slack = 1e-6 * np.abs(x) + 1e-6 * step
        assert (np.abs(back - x) <= step / 2 + slack).all()


@_CALM
@given(
    ends=st.tuples(_ENDS, _ENDS).map(sorted), fmt=st.sampled_from(_FORMATS), factor=st.floats(1, 9)
)
def test_values_beyond_the_range_saturate(
    ends: list[float], fmt: IntegerFormat, factor: float
) -> None:
    params = range_qparams(*ends, fmt, symmetric=False)
    far = np.array([-1e38 * factor / 9, 1e38 * factor / 9], np.float32)

    assert quantize(far, params).tolist() == [fmt.low, fmt.high]


@_CALM
@given(top=st.floats(1e-30, 1e30), fmt=st.sampled_from([f for f in _FORMATS if f.signed]))
def test_symmetric_signed_parameters_are_centred_and_exact_at_the_ends(
    top: float, fmt: IntegerFormat
) -> None:
    params = range_qparams(-top / 3, top, fmt, symmetric=True)

    ends = quantize(np.array([-top, top], np.float32), params, fmt.limits(symmetric=True))

    assert int(params.zero_point) == 0
    assert ends.tolist() == [-fmt.high, fmt.high]


def test_scale_and_zero_point_are_onnxs() -> None:
    params = range_qparams(-1.0, 3.0, IntegerFormat.UINT8, symmetric=False)

    assert float(params.scale) == np.float32(4 / 255)
    assert int(params.zero_point) == round(255 / 4)


@pytest.mark.parametrize(("low", "high"), [(2.0, 5.0), (-5.0, -2.0)])
def test_ranges_are_widened_to_contain_zero(low: float, high: float) -> None:
    params = range_qparams(low, high, IntegerFormat.INT8, symmetric=False)

    assert float(params.scale) == np.float32(5 / 255)


@pytest.mark.parametrize("top", [0.0, 1e-45, 1e-39, 5e-37])
@pytest.mark.parametrize("symmetric", [True, False])
def test_ranges_too_narrow_for_a_normal_scale_get_scale_one(top: float, symmetric: bool) -> None:
    params = range_qparams(-top / 2, top / 2, IntegerFormat.INT8, symmetric=symmetric)

    assert float(params.scale) == 1.0
    assert int(params.zero_point) == 0


@pytest.mark.parametrize(("low", "high"), [(-np.inf, np.inf), (0.0, np.inf), (-3.4e38, 3.4e38)])
@pytest.mark.parametrize("fmt", _FORMATS)
def test_ranges_wider_than_floats_give_finite_scales(
    low: float, high: float, fmt: IntegerFormat
) -> None:
    params = range_qparams(low, high, fmt, symmetric=False)

    assert np.isfinite(params.scale)
    assert np.isfinite(_code_range(params, symmetric=False, reduced=False)).all()


def test_symmetric_unsigned_formats_have_the_zero_point_in_the_middle() -> None:
    assert int(range_qparams(-1, 1, IntegerFormat.UINT8, symmetric=True).zero_point) == 128
    assert int(range_qparams(-1, 1, IntegerFormat.UINT4, symmetric=True).zero_point) == 8


def test_arrays_of_ranges_give_parameters_of_the_same_shape() -> None:
    params = range_qparams(
        np.array([-1, 0, 0]), np.array([1, 4, 0]), IntegerFormat.INT8, symmetric=False
    )

    assert params.scale.shape == params.zero_point.shape == (3,)
    assert params.scale.dtype == np.float32


@pytest.mark.parametrize("fmt", ["INT8", "UINT8", "INT16", "UINT16"])
def test_integers_and_floats_are_those_of_onnxs_operators(fmt: str) -> None:
    """Ties, values beyond the range and infinities among them."""
    kind = IntegerFormat[fmt]
    params = range_qparams(-3.0, 5.0, kind, symmetric=False)
    scale, zero = float(params.scale), int(params.zero_point)
    rng = np.random.default_rng(2)
    ties = (np.arange(-40, 40) + 0.5) * scale
    x = np.concatenate([rng.normal(0, 4, 500), ties, [0.0, 1e9, -1e9, np.inf, -np.inf]])
    x = x.astype(np.float32)
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N] x) => ({fmt.lower()}[N] q, float[N] y)
        <float s = {{{scale!r}}}, {fmt.lower()} z = {{{zero}}}> {{
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }}"""
    )

    want, floats = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})

    codes = quantize(x, params)
    np.testing.assert_array_equal(codes, want)
    np.testing.assert_array_equal(dequantize(codes, params), floats)


def test_ties_are_rounded_to_even() -> None:
    params = QParams(np.float32(2.0), np.int8(0), IntegerFormat.INT8)

    assert quantize(np.array([1, 3, 5, -1, -3], np.float32), params).tolist() == [0, 2, 2, 0, -2]


def test_32_bits_saturate_at_their_own_limits() -> None:
    """The largest 32-bit integer is not a single-precision number."""
    params = QParams(np.asarray(1e-3, np.float32), np.asarray(0, np.int32), IntegerFormat.INT32)

    codes = quantize(np.array([1e9, -1e9], np.float32), params)

    assert codes.tolist() == [2**31 - 1, -(2**31)]


def test_per_channel_parameters_apply_along_their_axis() -> None:
    scale = np.array([1.0, 0.5], np.float32)
    params = QParams(scale, np.zeros(2, np.int8), IntegerFormat.INT8, axis=1)
    x = np.ones((3, 2, 4), np.float32)

    codes = quantize(x, params)

    assert (codes[:, 0] == 1).all()
    assert (codes[:, 1] == 2).all()
    np.testing.assert_array_equal(dequantize(codes, params), x)


@pytest.mark.parametrize(("axis", "group_size"), [(0, 2), (1, 3), (1, 4)])
def test_parameters_per_group_hold_for_so_many_elements_of_their_axis(
    axis: int, group_size: int
) -> None:
    """The last group may be shorter."""
    x = np.arange(1, 36, dtype=np.float32).reshape(5, 7)
    shape = [5, 7]
    shape[axis] = -(-shape[axis] // group_size)
    scale = np.linspace(0.5, 2.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    zero = np.arange(scale.size, dtype=np.int8).reshape(shape)
    params = QParams(scale, zero, IntegerFormat.INT8, axis, group_size, x.shape[axis])

    codes = quantize(x, params)
    back = dequantize(codes, params)

    for row, column in np.ndindex(5, 7):
        at = (row // group_size, column) if axis == 0 else (row, column // group_size)
        code = int(np.rint(x[row, column] / scale[at])) + int(zero[at])
        assert codes[row, column] == code
        assert back[row, column] == np.float32(code - zero[at]) * scale[at]


@pytest.mark.parametrize("bits", [-20, 0, 7, 31])
def test_power_of_two_parameters_know_their_fraction_bits(bits: int) -> None:
    params = power_of_two_qparams(bits, IntegerFormat.INT8)

    assert float(params.scale) == 2.0**-bits
    assert params.fraction_bits == bits
    assert int(power_of_two_qparams(bits, IntegerFormat.UINT8).zero_point) == 128


@pytest.mark.parametrize("bits", [-400, -128, 127, 400])
def test_fraction_bits_outside_single_precision_are_brought_back(bits: int) -> None:
    params = power_of_two_qparams(bits, IntegerFormat.INT8)

    assert np.float32(_TINY) <= params.scale
    assert np.isfinite(params.scale * np.float32(127))
