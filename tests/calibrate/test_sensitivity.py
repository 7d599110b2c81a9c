"""Sensitivity: against sums made by hand, and against noise that is really added."""

from __future__ import annotations

import functools
import operator

import numpy as np
import pytest

from lowbit.calibrate.sensitivity import BINS, Sensitivity, bin_edges
from lowbit.calibrate.statistics import Stats, TensorStats, pack_stats, unpack_stats
from lowbit.errors import CalibrationError


def _drawn(*shape: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(0, 1, shape).astype(np.float32) for _ in range(2))


def test_squares_are_counted_at_the_values_they_belong_to() -> None:
    x, g = _drawn(1, 3, 8, 8)

    found = Sensitivity.of(x, g, rows=8)

    edges = bin_edges()
    assert np.all(np.diff(edges) > 0)
    for sign, part in zip((1, -1), found.squares, strict=True):
        for low, high, got in zip(edges[250:270], edges[251:271], part[250:270], strict=True):
            inside = (sign * x >= low) & (sign * x < high)
            np.testing.assert_allclose(got, np.square(g[inside], dtype=np.float64).sum(), rtol=1e-6)
    np.testing.assert_allclose(found.squares.sum(), np.square(g, dtype=np.float64).sum())


@pytest.mark.parametrize("at", [230, 250, 262])
def test_what_is_clipped_adds_up_before_it_is_squared(at: int) -> None:
    x, g = _drawn(1, 3, 8, 8)
    edge = bin_edges()[at]

    found = Sensitivity.of(x, g, rows=8)

    above, below = np.maximum(x - edge, 0), np.minimum(x + edge, 0)
    wanted = [(g.astype(np.float64) * cut).sum() ** 2 for cut in (above, below)]
    np.testing.assert_allclose(found.clipping[:, at], wanted, rtol=1e-4)


def test_some_rows_stand_for_all() -> None:
    """On average over many maps, whether rows have much in common or nothing."""
    for common in (0.0, 3.0):
        whole, some = [], []
        for seed in range(300):
            x, g = _drawn(1, 2, 24, 8, seed=seed)
            g = g + common * np.sign(np.random.default_rng(seed).normal())
            whole.append(Sensitivity.of(x, g, rows=24))
            some.append(Sensitivity.of(x[:, :, 1::3], g[:, :, 1::3], rows=24))
        a, b = (functools.reduce(operator.or_, each) for each in (whole, some))
        np.testing.assert_allclose(b.squares.sum(), a.squares.sum(), rtol=0.1)
        at = slice(230, 262)
        np.testing.assert_allclose(b.clipping[:, at].sum(), a.clipping[:, at].sum(), rtol=0.2)


def test_numbers_that_are_not_finite_leave_a_tensor_out() -> None:
    x, g = _drawn(1, 12)
    x[0, 3] = np.inf

    assert not Sensitivity.of(x, g, rows=1).is_usable
    assert not Sensitivity.of(g, g * 0, rows=1).is_usable
    assert Sensitivity.of(*_drawn(1, 12), rows=1).is_usable


def test_it_is_kept_with_the_statistics_and_merged() -> None:
    found = [Sensitivity.of(*_drawn(1, 12, seed=seed), rows=1) for seed in (0, 1)]
    one, two = (
        Stats({"t": TensorStats(-3.0, 3.0, 12, sensitivity=each)}, samples=1) for each in found
    )

    both = unpack_stats(pack_stats(one | two)).tensors["t"].sensitivity

    assert both is not None
    np.testing.assert_array_equal(both.squares, found[0].squares + found[1].squares)
    np.testing.assert_array_equal(both.clipping, found[0].clipping + found[1].clipping)
    without = Stats({"t": TensorStats(-3.0, 3.0, 12)}, samples=1)
    assert (one | without).tensors["t"].sensitivity is found[0]
    assert (without | one).tensors["t"].sensitivity is found[0]


def test_what_no_run_can_have_written_is_refused(monkeypatch) -> None:
    stats = Stats(
        {"t": TensorStats(-3.0, 3.0, 12, sensitivity=Sensitivity.of(*_drawn(1, 12), rows=1))},
        samples=1,
    )
    monkeypatch.setattr(Sensitivity, "packed", lambda _: np.full((3, 2, BINS), -1.0))

    with pytest.raises(CalibrationError, match="the sensitivity of tensor 't' is none"):
        unpack_stats(pack_stats(stats))
