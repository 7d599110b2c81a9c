from __future__ import annotations

import numpy as np
import pytest

from lowbit.numerics.formats import IntegerFormat


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
