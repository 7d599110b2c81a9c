"""Sums of channels: NumPy's, whatever is not finite left out."""

import numpy as np
import pytest

from lowbit.calibrate.channels import ChannelTotals, channel_sums


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_means_and_variances_are_numpys(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    totals = ChannelTotals.of(channel_sums(x, axis, squares=True))
    rest = tuple(i for i in range(3) if i != axis % 3)
    np.testing.assert_allclose(totals.means, x.mean(axis=rest), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(totals.variances, x.var(axis=rest), rtol=1e-4)


def test_samples_with_values_that_are_not_finite_have_no_totals() -> None:
    broken = np.array([[[1.0, np.inf], [2.0, 3.0]]], np.float32)
    huge = np.full((1, 2, 2), 3e38, np.float32) / 3
    assert ChannelTotals.of(channel_sums(broken, 1)) is None
    with np.errstate(over="ignore"):
        assert ChannelTotals.of(channel_sums(huge, 1, squares=True)) is None
        assert ChannelTotals.of(channel_sums(huge, 1)) is not None


def test_squares_are_known_only_if_both_have_them() -> None:
    x = np.ones((1, 2, 3), np.float32)
    plain, squared = (ChannelTotals.of(channel_sums(x, 1, squares=s)) for s in (False, True))
    assert (plain | squared).variances is None
    assert (squared | squared).positions == 6
    np.testing.assert_array_equal((squared | squared).variances, [0.0, 0.0])
