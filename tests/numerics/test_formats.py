from __future__ import annotations

import numpy as np
import pytest

from lowbit.numerics.formats import Format


@pytest.mark.parametrize(
    ("fmt", "bits", "low", "high", "dtype"),
    [
        (Format.INT4, 4, -8, 7, np.int8),
        (Format.UINT4, 4, 0, 15, np.uint8),
        (Format.INT8, 8, -128, 127, np.int8),
        (Format.UINT8, 8, 0, 255, np.uint8),
        (Format.INT16, 16, -32768, 32767, np.int16),
        (Format.UINT16, 16, 0, 65535, np.uint16),
        (Format.INT32, 32, -(2**31), 2**31 - 1, np.int32),
    ],
)
def test_a_format_knows_its_integers(
    fmt: Format, bits: int, low: int, high: int, dtype: type
) -> None:
    assert (fmt.bits, fmt.low, fmt.high) == (bits, low, high)
    assert fmt.dtype == np.dtype(dtype)
    assert fmt.signed == (low < 0)


@pytest.mark.parametrize(
    ("fmt", "symmetric", "reduced", "expected"),
    [
        (Format.INT8, True, False, (-127, 127)),
        (Format.INT8, False, False, (-128, 127)),
        (Format.UINT8, True, False, (0, 255)),
        (Format.INT8, True, True, (-63, 63)),
        (Format.INT8, False, True, (-64, 63)),
        (Format.UINT8, False, True, (0, 127)),
        (Format.INT4, True, False, (-7, 7)),
        (Format.INT16, True, False, (-32767, 32767)),
    ],
)
def test_limits_are_the_same_on_both_sides_when_symmetric(
    fmt: Format, symmetric: bool, reduced: bool, expected: tuple[int, int]
) -> None:
    assert fmt.limits(symmetric=symmetric, reduce_range=reduced) == expected


def test_formats_go_by_the_names_of_configuration_files() -> None:
    assert Format("uint16") is Format.UINT16
