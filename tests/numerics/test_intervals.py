"""Intervals against SciPy's, and by how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy

from lowbit.numerics.intervals import (
    Interval,
    error_of_sqnr,
    interval_of_mean,
    interval_of_share,
    interval_of_sqnr,
    student_quantile,
)
from lowbit.numerics.metrics import SignalNoise

# One process imports SciPy's and scikit-image's modules: two seconds.
pytestmark = pytest.mark.xdist_group("scipy")


@pytest.mark.parametrize("tail", [0.025, 0.05, 0.004])
@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 9, 30, 200])
def test_students_point_is_that_of_scipy(freedom, tail) -> None:
    # The series is 1 % off at three degrees, and more further out.
    rel = 0.012 if tail >= 0.025 else 0.07
    assert student_quantile(freedom, tail) == pytest.approx(
        scipy.stats.t.ppf(1 - tail, freedom), rel=rel
    )


def test_a_mean_has_scipys_interval() -> None:
    values = np.random.default_rng(0).normal(3, 2, 40)

    found = interval_of_mean(values.tolist(), 0.05)

    want = scipy.stats.t.interval(0.9, 39, loc=values.mean(), scale=scipy.stats.sem(values))
    assert (found.low, found.high) == pytest.approx(want, rel=1e-4)
    assert interval_of_mean([1.0]).high == math.inf


@pytest.mark.parametrize("hits", [0, 3, 40])
def test_a_share_has_scipys_wilson_interval(hits) -> None:
    found = interval_of_share([1.0] * hits + [0.0] * (40 - hits), 0.025)

    want = scipy.stats.binomtest(hits, 40).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((want.low, want.high), abs=1e-9)


def test_shares_of_positions_are_a_mean_within_bounds() -> None:
    found = interval_of_share([0.9, 1.0, 0.95, 1.0], 0.025)

    assert found.value == pytest.approx(0.9625)
    assert found.low < 0.9625 < found.high <= 1.0


def test_the_interval_of_an_sqnr_holds_as_often_as_it_says() -> None:
    """The truth is known: noise of a known share of the signal's power."""
    random = np.random.default_rng(1)
    truth, above, trials = 20.0, 0, 400
    for _ in range(trials):
        power = random.gamma(4, 1, 32)
        noise = power * random.gamma(3, 1 / 3, 32) / 100
        parts = [SignalNoise(signal=s, noise=n) for s, n in zip(power, noise, strict=True)]
        above += interval_of_sqnr(parts, 0.05).low > truth
    assert 0.02 < above / trials < 0.09


@pytest.mark.parametrize("strength", [0.0, 1.0])
@pytest.mark.parametrize("spread", [0.3, 0.7, 1.2])
@pytest.mark.parametrize("count", [2, 4, 8, 32])
def test_the_interval_of_an_sqnr_covers_log_normal_noise(count, spread, strength) -> None:
    """The truth is known: 20 dB, less what the mean of a log-normal is above its median."""
    random = np.random.default_rng(count)
    truth, covered, trials = 20 - 10 * np.log10(math.exp(spread**2 / 2)), 0, 600
    for _ in range(trials):
        power = np.exp(strength * random.normal(size=count))
        noise = power * np.exp(spread * random.normal(size=count)) / 100
        parts = [SignalNoise(signal=s, noise=n) for s, n in zip(power, noise, strict=True)]
        found = interval_of_sqnr(parts)
        covered += found.low <= truth <= found.high
    # The jackknife alone is down to 84 % with eight samples; its normal interval to 62 % with two.
    assert 0.9 < covered / trials < 0.99


def test_samples_without_noise_or_signal_leave_the_error_finite() -> None:
    parts = [SignalNoise(signal=1.0, noise=0.01)] * 16
    with_exact = error_of_sqnr([*parts, SignalNoise(signal=1.0)])

    assert error_of_sqnr(parts) == pytest.approx(0, abs=1e-9)
    # One sample in 17 that has no noise: 10 log10(17 / 16) = 0.26 dB, more or less.
    assert 0.2 < with_exact < 0.7
    assert error_of_sqnr([*parts, SignalNoise()]) == pytest.approx(0, abs=0.01)
    assert error_of_sqnr([SignalNoise(signal=1.0, noise=1.0), SignalNoise()]) < 200


def test_a_model_without_noise_is_certain() -> None:
    exact = [SignalNoise(signal=1.0)] * 3

    assert interval_of_sqnr(exact).low == math.inf


@pytest.mark.parametrize(("count", "total"), [(8, 12), (8, 32), (24, 32)])
def test_the_figure_of_all_samples_is_inside_its_interval_as_often_as_it_says(
    count: int, total: int
) -> None:
    rows = np.random.default_rng(0).normal(3, 2, (4000, total))

    found = [interval_of_mean(row[:count].tolist()).with_all(count, total) for row in rows]

    inside = [f.low <= row.mean() <= f.high for f, row in zip(found, rows, strict=True)]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


def test_nothing_is_open_once_all_samples_are_seen() -> None:
    assert interval_of_mean([1.0, 3.0]).with_all(2, 2) == Interval(2.0, 2.0, 2.0)
    assert interval_of_mean([1.0]).with_all(1, 1) == Interval(1.0, 1.0, 1.0)
    assert interval_of_mean([1.0]).with_all(1, 4) == Interval(1.0, -math.inf, math.inf)
