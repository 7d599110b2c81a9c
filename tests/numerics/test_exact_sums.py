"""Sums that do not round, checked against fractions."""

import fractions

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowbit.numerics.exact_sums import as_floats, exact_sums

_FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(_FLOATS, min_size=1, max_size=40))
def test_sum_is_that_of_fractions_rounded_once(values):
    total = sum(exact_sums(np.array([value], np.float32)) for value in values)
    want = float(sum(fractions.Fraction(value) for value in values))
    assert np.isclose(as_floats(total)[0], want, rtol=4e-16, atol=0.0)


@given(st.lists(_FLOATS, min_size=2, max_size=40), st.randoms())
def test_order_and_grouping_change_nothing(values, random):
    rows = [exact_sums(np.array([value], np.float32)) for value in values]
    forward = sum(rows)
    random.shuffle(rows)
    cut = random.randrange(len(rows))
    grouped = sum(rows[:cut]) + sum(rows[cut:])
    assert np.array_equal(as_floats(forward), as_floats(grouped))


def test_large_numbers_cancel_without_losing_small_ones():
    column = np.array([3e38, 1e-45, 3e38, -3e38, -3e38, -1.0], np.float32)
    total = sum(exact_sums(column[i : i + 1]) for i in range(len(column)))
    small = float(np.float32(1e-45))
    assert as_floats(total)[0] == float(fractions.Fraction(small) - 1)


def test_each_row_has_a_sum_of_its_own():
    values = np.array([0.0, -0.0, 1.5, -2.25, 1e-40, 3.4e38], np.float32)
    np.testing.assert_array_equal(as_floats(exact_sums(values)), values.astype(np.float64))


def test_float64_sums_round_where_these_do_not():
    values = np.array([1e16, 1.0, -1e16], np.float32)
    exact = sum(exact_sums(values[i : i + 1]) for i in range(3))
    assert as_floats(exact)[0] == 1.0
    assert float(np.float64(values[0]) + 1.0 + np.float64(values[2])) != 1.0
