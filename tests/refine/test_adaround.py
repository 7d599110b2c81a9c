"""AdaRound's steps against a plain second implementation, with all weights in every step."""

import math
import threading

import numpy as np
import pytest

from lowbit.config.refinement import AdaRound
from lowbit.ops.activations import NONE
from lowbit.refine import adaround
from lowbit.refine.adaround import RoundedRows
from lowbit.refine.gradient import Batch, Tuner

CONFIG = AdaRound(num_iterations=300, reg_param=0.001)
SCALE = 0.1


def _problem():
    random = np.random.default_rng(5)
    weight = random.standard_normal((1, 48, 40))
    patches = random.standard_normal((1, 40, 24)) * 0.1
    targets = weight @ patches + 0.02 * random.standard_normal((1, 48, 24))
    return [a.astype(np.float32) for a in (weight, patches, targets)]


def _tuned():
    weight, patches, targets = _problem()
    scale = np.full_like(weight, SCALE)
    bounds = (np.floor(weight / scale), np.ceil(weight / scale))
    rows = RoundedRows(weight, scale, bounds, CONFIG, CONFIG.learning_rate)
    tuner = Tuner(CONFIG, NONE, None, (1, 2), threading.Event())
    bias = np.zeros((1, 48, 1), np.float32)
    # As few columns as each step takes all of them.
    trace = tuner.tune(rows, bias, [Batch(patches, targets)], CONFIG.learning_rate)
    return rows.result(), trace


def _plainly():
    """AdaRound as the paper has it, in double precision, with textbook Adam."""
    weight, patches, targets = (a.astype(np.float64) for a in _problem())
    low = np.floor(weight / SCALE)
    share = (weight / SCALE - low + 0.1) / 1.2
    logit = np.log(share / (1 - share))
    mean, power = np.zeros_like(logit), np.zeros_like(logit)
    for at in range(CONFIG.num_iterations):
        sigmoid = 1 / (1 + np.exp(-logit))
        h = np.clip(1.2 * sigmoid - 0.1, 0, 1)
        error = SCALE * (low + h) @ patches - targets
        slope = SCALE * 2 / patches.shape[2] * error @ patches.swapaxes(1, 2)
        start = 0.2 * CONFIG.num_iterations
        if at >= start:
            part = (at - start) / (CONFIG.num_iterations - start)
            beta = 2 + 9 * (1 + math.cos(math.pi * part))
            far = 2 * h - 1
            slope -= CONFIG.reg_param * 2 * beta * np.abs(far) ** (beta - 1) * np.sign(far)
        slope *= 1.2 * sigmoid * (1 - sigmoid) * ((h > 0) & (h < 1))
        mean, power = 0.9 * mean + 0.1 * slope, 0.999 * power + 0.001 * slope**2
        unbiased = mean / (1 - 0.9 ** (at + 1)), power / (1 - 0.999 ** (at + 1))
        logit -= CONFIG.learning_rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return low + (logit >= 0)


def test_it_rounds_as_a_plain_implementation_does():
    found, _ = _tuned()
    expected = _plainly()
    assert np.mean(expected != np.rint(_problem()[0] / SCALE)) > 0.05
    # In single precision a few on the edge may fall the other way.
    assert np.mean(found == expected) > 0.995


@pytest.mark.parametrize("worth", [1, 100])
def test_leaving_out_decided_weights_changes_nothing(worth, monkeypatch):
    monkeypatch.setattr(adaround, "_WORTH", 10**9)
    together, all_steps = _tuned()
    monkeypatch.setattr(adaround, "_WORTH", worth)
    found, steps = _tuned()
    np.testing.assert_array_equal(found, together)
    assert steps.steps == all_steps.steps


def test_it_ends_when_every_weight_is_decided():
    _, trace = _tuned()
    assert trace.steps < CONFIG.num_iterations


def _rows(weight, low, high, **fields):
    shaped = [np.float32(a)[None, None] for a in (weight, low, high)]
    config = AdaRound(**fields)
    return RoundedRows(shaped[0], np.ones_like(shaped[0]), shaped[1:], config, 0.1)


def test_weights_start_where_the_float_ones_lie():
    rows = _rows([0.25, -1.5, 3.0], [0, -2, 3], [1, -1, 3])
    np.testing.assert_allclose(rows.weights()[0, 0], [0.25, -1.5, 3.0], atol=1e-6)
    # The nearer neighbour; of a weight on the grid both are the same.
    np.testing.assert_array_equal(rows.result()[0, 0], [0, -1, 3])


def test_weights_beyond_the_format_start_at_its_end():
    rows = _rows([9.5, -7.0], [7, -7], [7, -6])
    np.testing.assert_allclose(rows.weights()[0, 0], [7, -7], atol=1e-6)
    np.testing.assert_array_equal(rows.result()[0, 0], [7, -7])


def test_the_loss_of_rounding_sets_in_after_the_warm_start():
    rows = _rows([0.5, 0.25], [0, 0], [1, 1], num_iterations=10, warm_start=0.5, reg_param=2.0)
    losses = []
    for at in range(6):
        rows.weights()
        losses.append(rows.step(np.zeros((1, 1, 2), np.float32), at))
    assert losses[:5] == [0.0] * 5
    # By hand: 1 - |2 h - 1| ** beta with the first exponent, 20; no step has moved h yet.
    assert losses[5] == pytest.approx(2.0 * (1 - 0.0 + 1 - 0.5**20), rel=1e-5)
