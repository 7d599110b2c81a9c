"""What finishes tuning: sums over samples, descent from where tuning ended, and a stored bias."""

import numpy as np
import pytest

from lowbit.refine.descent import moments_of
from lowbit.refine.finish import Finish
from lowbit.refine.reconstruct import Grid
from lowbit.refine.sights import SeenSight, means_of, sums_of

SCALE = np.float32(0.25)


def _sights(count):
    random = np.random.default_rng(4)
    weight = random.standard_normal((2, 3, 5)).astype(np.float32)
    sights = []
    for _ in range(count):
        patches = (random.standard_normal((2, 5, 9)) + 0.5).astype(np.float32)
        targets = weight @ patches + np.float32(0.3)
        sums = patches.sum(axis=2), targets.sum(axis=2)
        sights.append(SeenSight(patches, targets, *sums, count=9))
    return weight, sights


def _together(sights):
    return [np.concatenate([getattr(s, n) for s in sights], axis=2) for n in ("patches", "targets")]


@pytest.mark.parametrize("bias", [None, 0.3])
def test_sums_give_the_moments_of_all_samples_together(bias):
    _, sights = _sights(11)
    patches, targets = _together(sights)
    added = None if bias is None else np.full((2, 3, 1), bias, np.float32)
    found = sums_of(sights).moments(added)
    expected = moments_of(patches, targets - (bias or 0.0), centred=bias is None)
    np.testing.assert_allclose(found.inputs, expected.inputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.outputs, expected.outputs, rtol=1e-4, atol=1e-5)


def _grid(weight):
    steps = weight / SCALE
    limits = np.full_like(weight, -128), np.full_like(weight, 127)
    scale = np.full_like(weight, SCALE)
    return Grid(
        weight, scale, np.rint(steps), np.floor(steps), np.ceil(steps), limits[0], limits[1]
    )


@pytest.mark.parametrize("free", [False, True])
def test_descent_starts_from_the_tuned_steps_and_makes_up_for_the_stored_bias(free):
    weight, sights = _sights(20)
    grid, means = _grid(weight), means_of(sights) if free else None
    bias = np.full((2, 3, 1), 0.3, np.float32)
    finish = Finish(grid, weight, sums_of(sights), lambda b: np.rint(b / 0.5) * 0.5, means)
    tuned, *others = finish.choices(grid.nearest, bias)
    patches, targets = _together(sights)

    def error(choice):
        return np.square(choice.steps * SCALE @ patches + choice.added - targets).mean()

    # The bias is stored as 0.5, not 0.3.
    np.testing.assert_array_equal(tuned.added, 0.5)
    assert len(others) == (4 if free else 1)
    assert error(others[-1]) < 0.9 * error(tuned)
    for choice in others:
        assert (choice.steps >= grid.low).all()
        assert (choice.steps <= grid.high).all()
