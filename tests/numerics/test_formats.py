"""Integer formats by their limits; 16-bit floats against custom operators and bit patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowbit.numerics.formats import FloatFormat, IntegerFormat, as_stored, rounded, scale_to_fit

_GOLDEN = Path(__file__).parent.parent / "golden" / "data" / "customop_golden.npz"
_BF16, _FP16 = FloatFormat.BFLOAT16, FloatFormat.FLOAT16


@pytest.mark.parametrize(
    ("fmt", "bits", "low", "high", "dtype"),
    [
        (IntegerFormat.INT4, 4, -8, 7, np.int8),
        (IntegerFormat.UINT4, 4, 0, 15, np.uint8),
        (IntegerFormat.INT8, 8, -128, 127, np.int8),
        (IntegerFormat.UINT8, 8, 0, 255, np.uint8),
        (IntegerFormat.INT16, 16, -32768, 32767, np.int16),
        (IntegerFormat.UINT16, 16, 0, 65535, np.uint16),
        (IntegerFormat.INT32, 32, -(2**31), 2**31 - 1, np.int32),
    ],
)
def test_a_format_knows_its_integers(
    fmt: IntegerFormat, bits: int, low: int, high: int, dtype: type
) -> None:
    assert (fmt.bits, fmt.low, fmt.high) == (bits, low, high)
    assert fmt.dtype == np.dtype(dtype)
    assert fmt.signed == (low < 0)


@pytest.mark.parametrize(
    ("fmt", "symmetric", "reduced", "expected"),
    [
        (IntegerFormat.INT8, True, False, (-127, 127)),
        (IntegerFormat.INT8, False, False, (-128, 127)),
        (IntegerFormat.UINT8, True, False, (0, 255)),
        (IntegerFormat.INT8, True, True, (-63, 63)),
        (IntegerFormat.INT8, False, True, (-64, 63)),
        (IntegerFormat.UINT8, False, True, (0, 127)),
        (IntegerFormat.INT4, True, False, (-7, 7)),
        (IntegerFormat.INT16, True, False, (-32767, 32767)),
    ],
)
def test_limits_are_the_same_on_both_sides_when_symmetric(
    fmt: IntegerFormat, symmetric: bool, reduced: bool, expected: tuple[int, int]
) -> None:
    assert fmt.limits(symmetric=symmetric, reduce_range=reduced) == expected


def test_formats_go_by_the_names_of_configuration_files() -> None:
    assert IntegerFormat("uint16") is IntegerFormat.UINT16


def test_bfloat16_is_quarks() -> None:
    with np.load(_GOLDEN) as golden:
        np.testing.assert_array_equal(rounded(golden["x"], _BF16), golden["bf16"])


def test_ties_go_to_the_even_pattern() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32)

    stored = as_stored(bits.view(np.float32), _BF16).view(np.uint16)

    assert [hex(b) for b in stored] == ["0x3f80", "0x3f82", "0x3f81"]


@pytest.mark.parametrize(("fmt", "largest"), [(_BF16, 3.3895313892515355e38), (_FP16, 65504.0)])
def test_finite_values_stay_finite(fmt: FloatFormat, largest: float) -> None:
    x = np.array([np.finfo(np.float32).max, -np.finfo(np.float32).max, np.inf], np.float32)

    assert fmt.largest == largest
    np.testing.assert_array_equal(rounded(x, fmt), np.array([largest, -largest, np.inf], "f4"))


@pytest.mark.parametrize("fmt", FloatFormat)
def test_a_scaled_tensor_reaches_what_the_format_is_scaled_to(fmt: FloatFormat) -> None:
    x = np.array([1e6, -3.0, 0.0], np.float32)
    scale = scale_to_fit(1e6, fmt)

    stored = as_stored(x, fmt, scale).astype(np.float32)

    assert stored.max() == pytest.approx(fmt.scaled_to, rel=2**-8)
    # 8 bits do not reach so far down.
    known = x if fmt.bits == 16 else x[:1]
    np.testing.assert_allclose(rounded(x, fmt, scale)[: len(known)], known, rtol=2**-8)


@pytest.mark.parametrize("peak", [0.0, 1e-45])
@pytest.mark.parametrize("fmt", FloatFormat)
def test_peaks_too_small_for_a_normal_scale_have_scale_one(fmt: FloatFormat, peak: float) -> None:
    assert scale_to_fit(peak, fmt) == 1.0


@pytest.mark.parametrize("fmt", FloatFormat)
def test_values_are_rounded_to_the_nearest_of_all_in_the_format(fmt: FloatFormat) -> None:
    """Every finite pattern of the format is listed, and the nearest looked for."""
    bits = np.arange(1 << fmt.bits, dtype=np.uint32)
    # A bfloat16 is the upper half of a float32.
    words = bits.astype(f"u{fmt.bits // 8}")
    values = (bits << 16).view(np.float32) if fmt is _BF16 else words.view(fmt.dtype)
    with np.errstate(invalid="ignore"):  # some patterns are NaN
        every = np.unique(values.astype(np.float64))
    every = every[np.isfinite(every)]
    rng = np.random.default_rng(3)
    x = (rng.normal(size=400) * np.exp2(rng.integers(-20, 15, 400))).astype(np.float32)
    x = np.clip(x, -0.99 * fmt.largest, 0.99 * fmt.largest)

    got = rounded(x, fmt).astype(np.float64)

    above = np.searchsorted(every, x.astype(np.float64))
    low, high = every[above - 1], every[above]
    nearest = np.minimum(np.abs(x - low), np.abs(high - x))
    assert np.isin(got, every).all()
    np.testing.assert_array_equal(np.abs(got - x), nearest)


def test_a_scale_may_differ_from_value_to_value() -> None:
    x, scale = np.array([3.0, 100.0], np.float32), np.array([1.0, 50.0], np.float32)

    stored = as_stored(x, _FP16, scale)

    assert stored.tolist() == [3.0, 2.0]
    assert rounded(x, _FP16, scale).tolist() == [3.0, 100.0]
