"""What a quantizer sees of a tensor, against NumPy over all samples at once."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.quantizers import activation, scale

from lowbit.analyze.observations import Observation


def observed(samples, **more) -> Observation:
    seen = Observation(activation(**more))
    for x in samples:
        seen.add(np.asarray(x, np.float32))
    return seen


@pytest.fixture
def samples() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 4, (3, 1, 6, 8, 8)).astype(np.float32)


def test_range_and_signal_are_those_of_all_samples(samples) -> None:
    seen = observed(samples)

    assert (seen.low, seen.high) == (samples.min(), samples.max())
    assert seen.reach == np.abs(samples).max()
    assert seen.count == samples.size
    assert seen.signal == pytest.approx(np.square(samples, dtype=np.float64).sum())


def test_noise_is_that_of_rounding_and_clipping(samples) -> None:
    seen = observed(samples, step=0.05)  # holds -6.4 to 6.35

    rounded = np.clip(np.rint(samples / np.float32(0.05)), -128, 127) * np.float32(0.05)
    beyond = samples - np.clip(samples, -6.4, 6.35)
    assert seen.noise == pytest.approx(
        np.square(samples - rounded, dtype=np.float64).sum(), rel=1e-4
    )
    assert seen.clip_noise == pytest.approx(np.square(beyond, dtype=np.float64).sum(), rel=1e-4)
    assert seen.clipped == np.count_nonzero(np.abs(beyond) > 0.025)
    assert seen.own_noise == seen.noise / seen.signal


def test_a_zero_point_moves_the_range() -> None:
    seen = observed([[-3.0, 0.0, 5.0]], scale=scale(1.0, zero=0, low=0, high=255))

    assert (seen.noise, seen.clip_noise, seen.clipped) == (9.0, 9.0, 1)


def test_channels_have_their_own_ranges(samples) -> None:
    seen = observed(samples)

    np.testing.assert_array_equal(seen.channel_low, samples.min(axis=(0, 1, 3, 4)))
    np.testing.assert_array_equal(seen.channel_high, samples.max(axis=(0, 1, 3, 4)))


def test_the_channels_of_a_matrix_are_its_last_axis() -> None:
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)

    seen = observed([x])

    np.testing.assert_array_equal(seen.channel_high, x.max(axis=(0, 1)))
    assert observed([np.arange(5.0)]).channel_low is None
    assert observed([np.zeros((4, 1))]).channel_low is None


def test_samples_of_other_shapes_leave_the_channels_as_they_are() -> None:
    seen = observed([np.ones((1, 3)), np.full((1, 4), 9.0)])

    np.testing.assert_array_equal(seen.channel_high, [1, 1, 1])
    assert seen.high == 9


def test_the_histogram_holds_every_value_in_equal_bins(samples) -> None:
    found = observed(samples).histogram()

    assert (found.low, found.high) == (samples.min(), samples.max())
    assert sum(found.counts) == samples.size
    want, _ = np.histogram(samples, len(found.counts), (found.low, found.high))
    # Values are known to one part in 128: near an edge they may fall beside it.
    off = np.abs(np.cumsum(want) - np.cumsum(found.counts)).max()
    assert off < 0.01 * samples.size


def test_a_constant_tensor_has_no_histogram() -> None:
    assert observed([np.full((1, 4), 3.0)]).histogram() is None
    assert observed([]).histogram() is None


def test_what_is_not_finite_or_empty_is_passed_over() -> None:
    seen = observed([[1.0, np.nan], [np.inf, 0.0], []])

    assert (seen.count, seen.reach, seen.own_noise) == (0, 0.0, 0.0)


def test_without_a_scale_nothing_is_known_of_its_noise(samples) -> None:
    for more in ({"step": None}, {"scale": scale(np.array([0.1, 0.2]), axis=1)}):
        seen = observed(samples, **more)

        assert (seen.noise, seen.own_noise, seen.clipped) == (0, 0, 0)
        assert seen.high == samples.max()
