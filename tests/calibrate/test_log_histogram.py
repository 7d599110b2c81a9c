"""The log histogram against a search for each value's bin among all edges."""

from __future__ import annotations

import concurrent.futures
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lowbit.calibrate.log_histogram import BINS, Counter, count, edges

_ANY_FLOAT = arrays.arrays(
    np.float32, arrays.array_shapes(max_dims=3), elements=st.floats(width=32)
)


def _bin_of(value: float, bounds: list[float]) -> int:
    """Find the bin of one value by comparing it with every edge."""
    size = abs(value)
    if size < bounds[0]:
        return BINS
    inside = next((k for k in range(BINS) if bounds[k] <= size < bounds[k + 1]), BINS - 1)
    return BINS + 1 + inside if value > 0 else BINS - 1 - inside


@settings(max_examples=60, deadline=None, derandomize=True)
@given(x=_ANY_FLOAT)
def test_each_value_is_counted_in_the_bin_its_edges_say(x: np.ndarray) -> None:
    bounds = edges().tolist()

    counts, not_finite = count(x)

    expected = np.zeros(2 * BINS + 1, np.int64)
    for value in x.reshape(-1).tolist():
        if math.isfinite(value):
            expected[_bin_of(value, bounds)] += 1
    np.testing.assert_array_equal(counts, expected)
    assert not_finite == int((~np.isfinite(x)).sum())


def test_edges_rise_by_less_than_one_part_in_a_hundred() -> None:
    bounds = edges()

    assert len(bounds) == BINS + 1
    assert bounds[0] == 2.0**-32
    assert bounds[-1] == 2.0**32
    ratio = bounds[1:] / bounds[:-1]
    assert (ratio > 1).all()
    assert (ratio <= 1 + 1 / 128).all()


def test_the_histogram_of_negatives_is_the_mirror_image() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)

    np.testing.assert_array_equal(count(-x)[0], count(x)[0][::-1])


def test_arrays_in_any_layout_and_type_are_counted() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)

    np.testing.assert_array_equal(count(x.transpose(2, 0, 1))[0], count(x)[0])
    np.testing.assert_array_equal(count(x.astype(np.float64))[0], count(x)[0])


def test_what_is_out_of_range_counts_as_zero_or_as_the_last_bin() -> None:
    counts, _ = count(np.array([1e-30, -1e-30, 0.0, 1e30, -1e30], np.float32))

    assert counts[BINS] == 3
    assert counts[-1] == counts[0] == 1


def test_a_counter_counts_as_one_pass_over_everything_would() -> None:
    rng = np.random.default_rng(3)
    parts = [rng.normal(size=n).astype(np.float32) for n in (5, 70_000, 0, 30_000, 40_000, 1)]
    counter = Counter()

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        list(pool.map(counter.add, parts))

    expected, _ = count(np.concatenate(parts))
    np.testing.assert_array_equal(counter.counts(), expected)


def test_a_counter_of_nothing_has_no_counts() -> None:
    assert Counter().counts() is None


def test_a_counter_keeps_no_reference_to_what_it_counts() -> None:
    buffer, counter = np.ones(8, np.float32), Counter()

    counter.add(buffer)
    buffer[:] = -2
    counter.add(buffer)

    both = np.float32([1] * 8 + [-2] * 8)
    np.testing.assert_array_equal(counter.counts(), count(both)[0])
