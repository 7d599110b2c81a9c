"""The noise that alpha is chosen by, against rounding itself."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.transforms._smooth_math import (
    ALPHAS,
    Levels,
    Read,
    Written,
    best_alpha,
    output_noise,
    smooth_factors,
)

_RNG = np.random.default_rng(11)
_GAMMA = np.exp(_RNG.normal(size=256))
_UNIT = _RNG.normal(size=(1000, 256))
_X = _UNIT * _GAMMA
_W = _RNG.normal(size=(64, 256)) * np.exp(0.5 * _RNG.normal(size=256))
_READ = Read(_W, np.abs(_X).max(axis=0), np.square(_X).mean(axis=0))
_WRITTEN = Written(_GAMMA, np.square(_GAMMA))
_PEAKS = (_READ.peaks, np.abs(_W).max(axis=0))


def rounded(a: np.ndarray, levels: int, axis: int | None = None) -> np.ndarray:
    if levels == 0:
        return a
    step = np.abs(a).max(axis=axis, keepdims=True) / levels
    return np.round(a / step) * step


def simulated(s: np.ndarray, levels: Levels, *, takes: bool) -> float:
    gamma = rounded(_GAMMA / s, levels.weight) if takes else _GAMMA / s
    x = rounded(_UNIT * gamma, levels.activation)
    w = rounded(_W * s, levels.weight, 1 if levels.per_channel else None)
    want = _X @ _W.T
    return float(np.square(x @ w.T - want).sum() / np.square(want).sum())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize(
    "levels", [Levels(), Levels(per_channel=True), Levels(activation=32767), Levels(weight=31)]
)
def test_predicted_noise_is_that_of_rounding(alpha: float, takes: bool, levels: Levels) -> None:
    s = smooth_factors(*_PEAKS, alpha)

    predicted = output_noise([_READ], _WRITTEN if takes else None, s, levels)

    assert predicted == pytest.approx(simulated(s, levels, takes=takes), rel=0.25)


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("levels", [Levels(), Levels(per_channel=True), Levels(activation=32767)])
def test_the_alpha_chosen_is_as_good_as_the_best(takes: bool, levels: Levels) -> None:
    found = best_alpha([_READ], _WRITTEN if takes else None, _PEAKS, levels)
    noise = {a: simulated(smooth_factors(*_PEAKS, a), levels, takes=takes) for a in ALPHAS}
    plain = simulated(np.ones(256), levels, takes=takes)

    chosen = plain if found is None else noise[found]
    assert chosen <= 1.05 * min(plain, *noise.values())
    assert chosen < 0.7 * max(plain, *noise.values())


def test_factors_are_those_of_the_formula_up_to_one_for_all() -> None:
    s = smooth_factors(*_PEAKS, 0.3)

    ratio = s / (_PEAKS[0] ** 0.3 / _PEAKS[1] ** 0.7)
    np.testing.assert_allclose(ratio, ratio[0])
    assert np.exp(np.log(s).mean()) == pytest.approx(1)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_factors_are_finite_whatever_the_data(bad: float) -> None:
    x = np.array([1.0, bad, 2.0])

    s = smooth_factors(x, np.array([1.0, 1.0, 0.0]), 0.5)

    assert np.isfinite(s).all()
    assert (s > 0).all()


def test_rounding_that_does_not_happen_makes_no_noise() -> None:
    assert output_noise([_READ], _WRITTEN, np.ones(256), Levels(0, 0)) == 0
