"""Factors and peaks on arrays alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lowbit.transforms import _cross_layer_math


def _kernel(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_peaks_are_by_channel_over_groups() -> None:
    kernel = np.arange(2 * 3 * 2 * 4, dtype=np.float32).reshape(2, 3, 2, 4) - 20

    written, read = _cross_layer_math.output_peaks(kernel), _cross_layer_math.input_peaks(kernel)

    np.testing.assert_array_equal(written, np.abs(kernel).max((2, 3)).reshape(-1))
    np.testing.assert_array_equal(read, np.abs(kernel).max((1, 3)).reshape(-1))
    assert (written.size, read.size) == (6, 4)


def test_relative_peaks_do_not_depend_on_a_factor_of_the_layer() -> None:
    np.testing.assert_array_equal(_cross_layer_math.relative(np.float32([2, 0, 8])), [0.25, 0, 1])
    np.testing.assert_array_equal(_cross_layer_math.relative(np.float32([0, 0])), [0, 0])


def test_scaling_reaches_a_view() -> None:
    weight = np.ones((4, 2), np.float32)

    _cross_layer_math.scale_outputs(weight.T[None, :, :, None], np.float32([2, 3]))
    _cross_layer_math.scale_inputs(weight.T[None, :, :, None], np.float32([1, 10, 1, 1]))

    np.testing.assert_array_equal(weight, [[2, 3], [20, 30], [2, 3], [2, 3]])


def test_free_channels_end_with_equal_peaks() -> None:
    first, second = _kernel(1, 5, 3, 9), _kernel(1, 7, 5, 1, seed=1)
    bounds = _cross_layer_math.make_bounds(5, [], largest=1e6)

    total = _cross_layer_math.next_factors(
        _cross_layer_math.output_peaks(first),
        _cross_layer_math.input_peaks(second),
        np.ones(5),
        bounds,
    )
    _cross_layer_math.scale_outputs(first, total.astype(np.float32))
    _cross_layer_math.scale_inputs(second, (1 / total).astype(np.float32))

    np.testing.assert_allclose(
        _cross_layer_math.output_peaks(first), _cross_layer_math.input_peaks(second), rtol=1e-6
    )


def test_a_clip_freezes_what_reaches_it_and_bounds_the_rest() -> None:
    seen = np.array([-1.0, 0.0, 1.0, 5.9, 6.0, 7.0, np.nan, np.inf])

    bounds = _cross_layer_math.make_bounds(8, [(6.0, seen)], largest=16.0)

    np.testing.assert_array_equal(bounds.frozen, [0, 0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_allclose(bounds.highest[:4], [16, 16, 6, 6 / 5.9])
    np.testing.assert_array_equal(bounds.lowest, np.full(8, 1 / 16))


def test_headroom_freezes_more_and_bounds_tighter() -> None:
    bounds = _cross_layer_math.make_bounds(
        2, [(6.0, np.array([2.0, 5.0]))], largest=16.0, headroom=1.5
    )

    np.testing.assert_array_equal(bounds.frozen, [False, True])
    assert bounds.highest[0] == 2.0


def test_of_two_clips_the_stricter_counts() -> None:
    limits = [(6.0, np.array([1.0, 7.0])), (3.0, np.array([1.0, 1.0]))]

    bounds = _cross_layer_math.make_bounds(2, limits, largest=16.0)

    assert bounds.highest[0] == 3.0
    np.testing.assert_array_equal(bounds.frozen, [False, True])


def test_dead_and_frozen_channels_keep_their_factor() -> None:
    bounds = _cross_layer_math.make_bounds(3, [(6.0, np.array([1.0, 1.0, 9.0]))], largest=16.0)
    total = np.array([1.0, 2.0, 1.0])

    after = _cross_layer_math.next_factors(
        np.float32([0, 1, 1]), np.float32([1, 0, 4]), total, bounds
    )

    np.testing.assert_array_equal(after, total)


def test_bounds_hold_over_rounds() -> None:
    bounds = _cross_layer_math.make_bounds(2, [], largest=16.0)

    once = _cross_layer_math.next_factors(
        np.float32([1, 1e4]), np.float32([1e4, 1]), np.ones(2), bounds
    )
    again = _cross_layer_math.next_factors(np.float32([1, 1e4]), np.float32([1e4, 1]), once, bounds)

    np.testing.assert_array_equal(once, [16, 1 / 16])
    np.testing.assert_array_equal(again, once)
    assert _cross_layer_math.is_settled(once, again)
    assert not _cross_layer_math.is_settled(np.ones(2), once)


def test_capped_are_those_that_would_go_on() -> None:
    bounds = _cross_layer_math.make_bounds(
        5, [(6.0, np.array([6.0, 3.0, 0.0, 0.0, 0.0]))], largest=16.0
    )
    total = np.array([1.0, 2.0, 1 / 16, 16.0, 3.0])
    written, read = np.float32([1, 1, 8, 1, 0]), np.float32([9, 9, 1, 1, 9])

    np.testing.assert_array_equal(
        _cross_layer_math.is_capped(written, read, total, bounds), [False, True, True, False, False]
    )


@given(
    st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3),
    st.lists(st.floats(0, 1e6, width=32), min_size=3, max_size=3),
    st.lists(st.floats(-10, 100), min_size=3, max_size=3),
)
def test_factors_never_let_a_channel_reach_a_clip_it_did_not_reach(
    written: list[float], read: list[float], seen: list[float]
) -> None:
    maxima = np.array(seen)
    bounds = _cross_layer_math.make_bounds(3, [(6.0, maxima)], largest=16.0)

    total = _cross_layer_math.next_factors(
        np.float32(written), np.float32(read), np.ones(3), bounds
    )

    assert np.all((total >= 1 / 16) & (total <= 16))
    assert np.all(np.where(maxima < 6, total * maxima <= 6 * (1 + 1e-12), total == 1))
