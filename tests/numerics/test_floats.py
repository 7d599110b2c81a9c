"""16-bit floats against AMD Quark's custom operator and against bit patterns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowbit.numerics.float16 import FloatFormat, as_stored, rounded, scale_to_fit

_GOLDEN = Path(__file__).parent.parent / "golden" / "data" / "customop_golden.npz"
_BF16, _FP16 = FloatFormat.BFLOAT16, FloatFormat.FLOAT16


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
    np.testing.assert_allclose(rounded(x, fmt, scale), x, rtol=2**-8)


def test_zeros_have_scale_one() -> None:
    assert scale_to_fit(0.0, _BF16) == 1.0
