import math

import numpy as np
import pytest
from scipy import stats  # comes with scikit-image

from lowbit.evaluate.accuracy import _student, gap_of_hits, gap_of_scores, gap_of_sets


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 9, 30, 200])
def test_students_point_is_that_of_scipy(freedom) -> None:
    assert _student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.012)


def test_paired_scores_are_scipys_paired_interval() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=60)
    b = a - 0.1 + 0.05 * rng.normal(size=60)

    gap = gap_of_scores(a.tolist(), b.tolist())

    want = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert gap.value == pytest.approx(np.mean(a - b))
    assert (gap.low, gap.high) == (
        pytest.approx(want.low, rel=1e-3),
        pytest.approx(want.high, rel=1e-3),
    )


def test_the_interval_of_hits_covers_the_true_gap_95_times_in_100() -> None:
    rng = np.random.default_rng(1)
    true, count, trials = 0.02, 400, 2000
    covered = 0
    for _ in range(trials):
        kind = rng.choice(4, count, p=[0.65, 0.05, 0.03, 0.27])  # both, lost, won, neither
        gap = gap_of_hits((kind <= 1).tolist(), ((kind == 0) | (kind == 2)).tolist())
        covered += gap.low <= true <= gap.high

    assert 0.93 < covered / trials < 0.98


def test_few_samples_without_a_change_do_not_claim_certainty() -> None:
    gap = gap_of_hits([True] * 10, [True] * 10)

    assert gap.value == 0
    assert gap.low < -0.1
    assert gap.high > 0.1


def test_samples_needed_narrow_the_interval_to_the_tolerance() -> None:
    rng = np.random.default_rng(2)
    kind = rng.choice(3, 500, p=[0.9, 0.06, 0.04])
    needed = gap_of_hits((kind != 2).tolist(), (kind != 1).tolist()).samples_needed(0.01)

    kind = rng.choice(3, needed, p=[0.9, 0.06, 0.04])
    gap = gap_of_hits((kind != 2).tolist(), (kind != 1).tolist())
    assert (gap.high - gap.low) / 2 == pytest.approx(0.01, rel=0.15)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(1, 1, 200), rng.normal(0.5, 1, 200)

    gap = gap_of_sets(a.tolist(), b.tolist(), lambda items: float(np.mean(items)))

    error = np.std(a - b, ddof=1) / math.sqrt(200)
    assert gap.value == pytest.approx(np.mean(a) - np.mean(b))
    assert (gap.high - gap.low) / 2 == pytest.approx(2.09 * error, rel=0.35)
