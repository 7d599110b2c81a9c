"""Block formats against AMD Quark's custom operators, bit for bit, and by their properties."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lowbit.numerics.blocks import MINIFLOATS, Element, Rounding, round_bfp, round_mx

_GOLDEN = Path(__file__).parent.parent / "golden" / "data" / "customop_golden.npz"

FORMATS = {
    "bfp16": round_bfp,
    "bfp16_r0": partial(round_bfp, rounding=Rounding.AWAY),
    "bfp16_r1": partial(round_bfp, rounding=Rounding.UP),
    "mx4": partial(round_bfp, bits=11, block=16, pairs=True),
    "mx6": partial(round_bfp, bits=13, block=16, pairs=True),
    "mx9": partial(round_bfp, bits=16, block=16, pairs=True),
    **{f"mx_{element.value}": partial(round_mx, element=element) for element in Element},
}


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_quarks(name: str) -> None:
    with np.load(_GOLDEN) as golden:
        np.testing.assert_array_equal(FORMATS[name](golden["x"], 1), golden[name])


_tensors = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 40)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mx_int8"])
@settings(deadline=None, max_examples=50)
@given(x=_tensors)
def test_rounding_twice_is_rounding_once(name: str, x: np.ndarray) -> None:
    once = FORMATS[name](x, 1)

    np.testing.assert_array_equal(FORMATS[name](once, 1), once)


def test_rounding_to_mxint8_twice_is_coarser_where_a_code_is_minus_128() -> None:
    x = np.array([-1.999, 1.015625], np.float32)

    once = round_mx(x, 0, element=Element.INT8)

    assert once.tolist() == [-2.0, 1.015625]
    assert round_mx(once, 0, element=Element.INT8).tolist() == [-2.0, 1.0]


@pytest.mark.parametrize("name", FORMATS)
def test_an_axis_is_as_good_as_another(name: str) -> None:
    x = np.random.default_rng(0).normal(size=(5, 37, 3)).astype(np.float32)

    first = FORMATS[name](np.moveaxis(x, 1, 0), 0)

    np.testing.assert_array_equal(np.moveaxis(first, 0, 1), FORMATS[name](x, 1))
    np.testing.assert_array_equal(FORMATS[name](x, -2), FORMATS[name](x, 1))


@pytest.mark.parametrize("name", FORMATS)
def test_extremes_pass(name: str) -> None:
    largest = np.finfo(np.float32).max
    x = np.zeros((1, 64), np.float32)
    x[0, :5] = (np.inf, -np.inf, np.nan, largest, 1.0)

    got = FORMATS[name](x, 1)

    np.testing.assert_array_equal(got[0, :3], x[0, :3])
    assert 0.7 * largest < got[0, 3] <= largest
    assert not got[0, 4:].any()


@pytest.mark.parametrize("name", FORMATS)
def test_scalars_stay(name: str) -> None:
    assert FORMATS[name](np.float32(1.2345), 0) == np.float32(1.2345)


@pytest.mark.parametrize("element", MINIFLOATS)
def test_minifloats_are_those_of_ml_dtypes(element: Element) -> None:
    """An independent implementation, for a block whose scale is one."""
    import ml_dtypes

    dtype = {
        Element.FP8_E5M2: ml_dtypes.float8_e5m2,
        Element.FP8_E4M3: ml_dtypes.float8_e4m3fn,
        Element.FP6_E3M2: ml_dtypes.float6_e3m2fn,
        Element.FP6_E2M3: ml_dtypes.float6_e2m3fn,
        Element.FP4_E2M1: ml_dtypes.float4_e2m1fn,
    }[element]
    small = MINIFLOATS[element]
    x = np.random.default_rng(1).normal(0, 2.0 ** (small.emin + 1), 31).astype(np.float32)
    x = np.append(np.clip(x, -small.largest, small.largest), np.float32(2.0**small.emax))

    np.testing.assert_array_equal(round_mx(x, 0, element=element), x.astype(dtype).astype("f4"))
