"""Sums of channels: NumPy's, whatever is not finite left out."""

import concurrent.futures

import numpy as np
import pytest

from lowbit.calibrate.channels import ChannelAdder, ChannelSums, ChannelTotals, channel_sums


def totals_of(*samples: ChannelSums) -> ChannelTotals | None:
    adder = ChannelAdder()
    for sample in samples:
        adder.add({"t": sample})
    return adder.totals().get("t")


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_means_and_variances_are_numpys(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(4, 5, 6)).astype(np.float32)
    totals = totals_of(channel_sums(x, axis, squares=True))
    rest = tuple(i for i in range(3) if i != axis % 3)
    np.testing.assert_allclose(totals.means, x.mean(axis=rest), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(totals.variances, x.var(axis=rest), rtol=1e-4)


def test_samples_with_values_that_are_not_finite_have_no_totals() -> None:
    broken = np.array([[[1.0, np.inf], [2.0, 3.0]]], np.float32)
    huge = np.full((1, 2, 2), 3e38, np.float32) / 3
    assert totals_of(channel_sums(broken, 1)) is None
    with np.errstate(over="ignore"):
        assert totals_of(channel_sums(huge, 1, squares=True)) is None
        assert totals_of(channel_sums(huge, 1)) is not None


def test_a_tensor_that_is_not_finite_leaves_others_of_its_sample_alone() -> None:
    good, broken = np.ones((1, 2, 3), np.float32), np.full((1, 4, 3), np.nan, np.float32)
    adder = ChannelAdder()
    adder.add({"broken": channel_sums(broken, 1), "good": channel_sums(good, 1)})
    adder.add({"broken": channel_sums(np.ones_like(broken), 1), "good": channel_sums(3 * good, 1)})

    found = adder.totals()
    assert found["good"].means.tolist() == [2.0, 2.0]
    assert found["broken"].means.tolist() == [1.0] * 4
    assert (found["good"].positions, found["broken"].positions) == (6, 3)


def test_samples_without_positions_count_nothing() -> None:
    assert totals_of(channel_sums(np.ones((1, 2, 0), np.float32), 1)) is None


def test_threads_give_the_bits_of_a_loop() -> None:
    random = np.random.default_rng(1)
    scales = 10.0 ** random.integers(-20, 19, size=40)
    samples = [
        {
            name: channel_sums((random.normal(size=(1, size, 5)) * s).astype(np.float32), 1)
            for name, size in (("a", 3), ("b", 7))
        }
        for s in scales
    ]
    one, many = ChannelAdder(), ChannelAdder()
    for sample in samples:
        one.add(sample)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(many.add, reversed(samples)))

    want, found = one.totals(), many.totals()
    for name in ("a", "b"):
        assert np.array_equal(found[name].means, want[name].means)


def test_squares_are_known_only_if_both_have_them() -> None:
    x = np.ones((1, 2, 3), np.float32)
    plain, squared = (totals_of(channel_sums(x, 1, squares=s)) for s in (False, True))
    assert (plain | squared).variances is None
    assert (squared | squared).positions == 6
    np.testing.assert_array_equal((squared | squared).variances, [0.0, 0.0])
