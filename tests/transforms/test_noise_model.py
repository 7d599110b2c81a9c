"""The noise of rounding around a group, and the factors that make it least."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.transforms.noise_model import GroupNoise, Rounded, least_noise


def _random(seed: int, channels: int = 4) -> GroupNoise:
    rng = np.random.default_rng(seed)

    def rounded() -> Rounded:
        return Rounded(np.exp(rng.normal(size=channels)), np.exp(2 * rng.normal(size=channels)))

    return GroupNoise((rounded(),), (rounded(),), (rounded(),))


def _wide(channels: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full(channels, 1 / 16), np.full(channels, 16.0)


@pytest.mark.parametrize("seed", range(8))
def test_factors_are_near_the_best_of_many(seed: int) -> None:
    """Brute force: every combination of factors in steps of half an octave."""
    group = _random(seed)
    octaves = np.arange(-3, 3.5, 0.5)
    grid = np.stack(np.meshgrid(*[octaves] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    # A factor on all channels changes nothing, so one of them may stay.
    factors = np.exp2(np.concatenate([np.zeros((len(grid), 1)), grid], axis=1))

    found = least_noise(group, *_wide(4))

    assert group.total(found) <= 1.1 * group.total(factors).min()
    assert group.total(found) <= group.total(np.ones(4))


def test_noise_does_not_depend_on_a_factor_of_all_channels() -> None:
    group, factors = _random(1), np.array([1.0, 2.0, 0.5, 3.0])

    np.testing.assert_allclose(group.total(7 * factors), group.total(factors))


def test_factors_stay_between_bounds() -> None:
    lowest, highest = np.array([1.0, 0.5, 1.0, 1.0]), np.array([1.0, 2.0, 1.0, 1.1])

    found = least_noise(_random(2), lowest, highest)

    assert np.all((found >= lowest) & (found <= highest))


def test_activations_alone_fill_their_range() -> None:
    """Where weights cost nothing, every channel is scaled up to the largest."""
    nothing = Rounded(np.ones(3), np.full(3, 1e-12))
    group = GroupNoise((Rounded(np.array([1.0, 2.0, 8.0]), np.ones(3)),), (), (nothing,))

    found = least_noise(group, *_wide(3))

    np.testing.assert_allclose(found / found[-1], [8, 4, 1])


def test_what_is_not_a_number_changes_nothing() -> None:
    group = GroupNoise((Rounded(np.array([np.nan, 1.0]), np.ones(2)),), (), ())

    np.testing.assert_array_equal(least_noise(group, *_wide(2)), [1, 1])
