from __future__ import annotations

import decimal

import numpy as np
import pytest

from lowbit.numerics.powers import float32_power


@pytest.mark.parametrize("exponent", [1 / 3, 0.5, 0.85])
def test_powers_are_the_nearest_float32_of_the_true_ones(exponent: float) -> None:
    base = np.random.default_rng(0).lognormal(0, 4, 2000).astype(np.float32)
    true = decimal.Decimal(float(np.float32(exponent)))
    with decimal.localcontext(prec=40):
        want = [np.float32(decimal.Decimal(float(value)) ** true) for value in base]

    found = float32_power(base, exponent)

    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, want)


def test_nothing_to_a_power_is_nothing() -> None:
    assert float32_power(np.zeros(1, np.float32), 1 / 3) == 0
