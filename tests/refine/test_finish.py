"""What finishes tuning: descent from where it ended, and a bias that is stored."""

import numpy as np
import pytest

from lowbit.refine.finish import Finish
from lowbit.refine.reconstruct import Grid
from lowbit.refine.samples import SampleInMemory, means_of, sums_of

SCALE = np.float32(0.25)


def _samples(count):
    random = np.random.default_rng(4)
    weight = random.standard_normal((2, 3, 5)).astype(np.float32)
    samples = []
    for _ in range(count):
        patches = (random.standard_normal((2, 5, 9)) + 0.5).astype(np.float32)
        targets = weight @ patches + np.float32(0.3)
        sums = patches.sum(axis=2), targets.sum(axis=2)
        samples.append(SampleInMemory(patches, targets, *sums, count=9))
    return weight, samples


def _together(samples):
    return [
        np.concatenate([getattr(s, n) for s in samples], axis=2) for n in ("patches", "targets")
    ]


def _grid(weight):
    exact = weight / SCALE
    limits = np.full_like(weight, -128), np.full_like(weight, 127)
    scale = np.full_like(weight, SCALE)
    return Grid(
        weight, scale, np.rint(exact), np.floor(exact), np.ceil(exact), limits[0], limits[1]
    )


@pytest.mark.parametrize("free", [False, True])
def test_descent_starts_from_the_tuned_codes_and_makes_up_for_the_stored_bias(free):
    weight, samples = _samples(20)
    grid, means = _grid(weight), means_of(samples) if free else None
    bias = np.full((2, 3, 1), 0.3, np.float32)
    finish = Finish(grid, weight, sums_of(samples), lambda b: np.rint(b / 0.5) * 0.5, means)
    tuned, *others = finish.candidates(grid.nearest, bias)
    patches, targets = _together(samples)

    def error(candidate):
        return np.square(candidate.codes * SCALE @ patches + candidate.added - targets).mean()

    # The bias is stored as 0.5, not 0.3.
    np.testing.assert_array_equal(tuned.added, 0.5)
    assert len(others) == (4 if free else 1)
    assert error(others[-1]) < 0.9 * error(tuned)
    for candidate in others:
        assert (candidate.codes >= grid.low).all()
        assert (candidate.codes <= grid.high).all()


def test_a_free_bias_ends_at_the_float_mean():
    """With a bias that is stored exactly, the mean output is that of the targets."""
    weight, samples = _samples(20)
    means = means_of(samples)
    bias = np.zeros((2, 3, 1), np.float32)
    finish = Finish(_grid(weight), weight, sums_of(samples), lambda b: b, means)
    patches, targets = _together(samples)
    _, _, *fitted = finish.candidates(_grid(weight).nearest, bias)
    for candidate in fitted[:2]:
        found = candidate.codes * SCALE @ patches + candidate.added
        np.testing.assert_allclose(found.mean(axis=2), targets.mean(axis=2), atol=1e-4)
