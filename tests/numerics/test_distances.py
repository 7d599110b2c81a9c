"""Distances of outputs, against formulas written out."""

import numpy as np
import pytest

from lowbit.numerics.metrics import DISTANCES


def _outputs(seed):
    random = np.random.default_rng(seed)
    return [[random.normal(size=(1, 7)).astype(np.float32)] for _ in range(3)]


def _by_hand(name, a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    if name == "l2":
        return np.linalg.norm(a - b)
    if name == "cosine":
        return 1 - (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
    if name == "sqnr":
        return -10 * np.log10(np.mean(a**2) / np.mean((a - b) ** 2))
    if name == "psnr":
        return -20 * np.log10(np.abs(a).max()) + 10 * np.log10(np.mean((a - b) ** 2))
    p, q = a - min(a.min(), 0), b - min(b.min(), 0)
    p, q = p / p.sum(), q / q.sum()
    return np.sum(p * np.log((p + 1e-10) / (q + 1e-10)))


@pytest.mark.parametrize("name", ["l2", "kl", "cosine", "sqnr", "psnr"])
def test_each_is_the_mean_over_samples(name):
    want, got = _outputs(1), _outputs(2)
    expected = np.mean([_by_hand(name, a[0], b[0]) for a, b in zip(want, got, strict=True)])
    assert DISTANCES[name](want, got) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_outputs_are_nearest(name):
    want, got = _outputs(1), _outputs(2)
    assert DISTANCES[name](want, want) < DISTANCES[name](want, got)
    assert np.isfinite(DISTANCES[name](want, want))


@pytest.mark.parametrize("name", DISTANCES)
def test_nothing_but_zeros_is_no_trouble(name):
    zeros = [[np.zeros((1, 4), np.float32)]]
    assert np.isfinite(DISTANCES[name](zeros, zeros))


def test_as_many_samples_are_wanted():
    with pytest.raises(ValueError, match="zip"):
        DISTANCES["l2"](_outputs(1), _outputs(1)[:2])
