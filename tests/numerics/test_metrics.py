from __future__ import annotations

import math

import numpy as np
import pytest

from lowbit.numerics.metrics import SignalNoise


@pytest.mark.parametrize("size", [10, 100_000])
def test_the_ratio_is_signal_over_noise_in_decibels(size: int) -> None:
    rng = np.random.default_rng(0)
    want = rng.normal(size=size).astype(np.float32)
    got = want + rng.normal(size=size).astype(np.float32) * np.float32(0.01)

    closeness = SignalNoise.of(want, got)

    a, b = want.astype(np.float64), got.astype(np.float64)
    expected = 10 * math.log10((a @ a) / ((a - b) @ (a - b)))
    assert closeness.sqnr_db == pytest.approx(expected, abs=1e-3)
    assert closeness.cosine == pytest.approx(a @ b / math.sqrt((a @ a) * (b @ b)), abs=1e-6)
    assert closeness.max_error == pytest.approx(np.abs(a - b).max(), rel=1e-5)


def test_samples_of_any_shape_add_up() -> None:
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=n), rng.normal(size=n)) for n in (3, 50, 700)]

    parts = [SignalNoise.of(a.reshape(-1, 1), b.reshape(-1, 1)) for a, b in pairs]
    together = parts[0] | parts[1] | parts[2]

    whole = SignalNoise.of(*(np.concatenate(arrays) for arrays in zip(*pairs, strict=True)))
    assert together.sqnr_db == pytest.approx(whole.sqnr_db)
    assert together.max_error == whole.max_error


def test_equal_tensors_have_an_infinite_ratio() -> None:
    x = np.arange(5.0)

    assert SignalNoise.of(x, x).sqnr_db == math.inf
    assert SignalNoise.of(x, x).cosine == pytest.approx(1.0)


def test_zero_tensors_agree_and_noise_on_zero_is_the_worst() -> None:
    zero, one = np.zeros(4), np.ones(4)

    assert SignalNoise.of(zero, zero).cosine == 1.0
    assert SignalNoise.of(zero, one).cosine == 0.0
    assert SignalNoise.of(zero, one).sqnr_db == -math.inf


@pytest.mark.parametrize("size", [8, 50_000])
def test_a_result_that_is_not_a_number_is_the_worst(size: int) -> None:
    got = np.ones(size, np.float32)
    got[3] = np.nan

    assert SignalNoise.of(np.ones(size, np.float32), got).sqnr_db == -math.inf


def test_squares_beyond_single_precision_are_summed_in_double() -> None:
    want = np.full(50_000, 1e25, np.float32)

    assert SignalNoise.of(want, want * np.float32(0.99)).sqnr_db == pytest.approx(40.0, abs=0.01)


def test_empty_tensors_are_equal() -> None:
    assert SignalNoise.of(np.zeros(0), np.zeros(0)).sqnr_db == math.inf
