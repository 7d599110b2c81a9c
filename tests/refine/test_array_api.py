"""The arithmetic keeps to the array API, so that it runs on any device's arrays."""

import array_api_strict as strict
import numpy as np

from lowbit.config.refinement import AdaRound
from lowbit.ops.activations import NONE
from lowbit.refine.adaquant import TunedRows, to_steps
from lowbit.refine.adaround import RoundedRows
from lowbit.refine.descent import descend, moments_of
from lowbit.refine.tune import Look, Tuner


def _problem():
    random = np.random.default_rng(3)
    patches = random.standard_normal((2, 5, 40)).astype(np.float32)
    weight = random.standard_normal((2, 3, 5)).astype(np.float32)
    return weight, patches, weight @ patches


def test_descent_is_the_same_on_arrays_that_allow_nothing_else():
    weight, patches, targets = _problem()
    scale = np.full_like(weight, 0.3)

    def solved(put):
        w, u, y, s = (put(a) for a in (weight, patches, targets, scale))
        bounds = (put(np.floor(weight / scale)), put(np.ceil(weight / scale)))
        moments = moments_of(u, y, centred=True).held_to(w, 0.1)
        return np.asarray(descend(moments, put(np.round(weight / scale)), s, bounds, 3))

    np.testing.assert_array_equal(solved(strict.asarray), solved(np.asarray))


def test_tuning_is_the_same_on_arrays_that_allow_nothing_else():
    import threading

    weight, patches, targets = _problem()
    scale = np.full_like(weight, 0.3)
    config = AdaRound(num_iterations=40)

    def solved(put, kind):
        w, s = put(weight.copy()), put(scale)
        low, high = put(np.floor(weight / scale)), put(np.ceil(weight / scale))
        if kind == "adaround":
            rows = RoundedRows(w, s, (low, high), config, 0.1)
        else:
            rows = TunedRows(w, to_steps(s, (low, high)), 0.01)
        looks = [Look(put(patches), put(targets))]
        tuner = Tuner(config, NONE, None, (1, 2), threading.Event())
        tuner.tune(rows, put(np.zeros((2, 3, 1), np.float32)), looks, 0.1)
        return np.asarray(rows.result())

    for kind in ("adaround", "adaquant"):
        np.testing.assert_allclose(
            solved(strict.asarray, kind), solved(np.asarray, kind), rtol=1e-5, atol=1e-6
        )
