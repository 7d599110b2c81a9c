"""Against numpy.histogram, whose counts these are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.calibrate import binning
from lowbit.calibrate.binning import count_between

_CALM = settings(max_examples=80, deadline=None, derandomize=True)


@_CALM
@given(
    seed=st.integers(0, 2**31),
    bins=st.sampled_from([1, 7, 128, 2048]),
    shift=st.floats(-3, 3),
    wide=st.booleans(),
    relu=st.booleans(),
)
def test_the_counts_are_numpys(seed: int, bins: int, shift: float, wide: bool, relu: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(shift, 1.0, 3000).astype(np.float32)
    x = np.maximum(x, 0) if relu else x
    edges = np.linspace(-1.0 + shift / 7, 3.0, bins + 1, dtype=np.float64 if wide else np.float32)
    # Values on edges, and the floats next to them, are where rounding would show.
    on = edges.astype(np.float32)
    x = np.concatenate([x, on, np.nextafter(on, np.float32(9)), np.nextafter(on, np.float32(-9))])

    np.testing.assert_array_equal(count_between(x, edges), np.histogram(x, edges)[0])


def test_blocks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binning, "_BLOCK", 64)
    x = np.random.default_rng(0).normal(size=(3, 5, 77)).astype(np.float32)
    edges = np.linspace(-2, 2, 33)

    np.testing.assert_array_equal(count_between(x, edges), np.histogram(x, edges)[0])


@pytest.mark.parametrize("edges", [[-1.0, 0.0], [0.0, 1.0], [-2.0, -1.0], [-0.5, 0.5, 1.0]])
def test_zeros_of_either_sign_fall_where_numpy_puts_them(edges: list[float]) -> None:
    x = np.array([0.0, -0.0, 0.0, 0.25], np.float32)

    np.testing.assert_array_equal(count_between(x, np.array(edges)), np.histogram(x, edges)[0])


def test_uneven_edges_are_numpys_own() -> None:
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    edges = np.array([-1.0, -0.9, 0.0, 0.7, 2.0])

    np.testing.assert_array_equal(count_between(x, edges), np.histogram(x, edges)[0])


@pytest.mark.parametrize("bins", [100_000, 5_000_000])
def test_very_many_bins_are_exact(bins: int) -> None:
    x = np.random.default_rng(0).uniform(-1, 1, 50_000).astype(np.float32)
    edges = np.linspace(-1, 1, bins + 1)

    np.testing.assert_array_equal(count_between(x, edges), np.histogram(x, edges)[0])


def test_bins_far_from_zero_are_exact() -> None:
    x = np.random.default_rng(0).uniform(1e4, 1e4 + 1, 5000).astype(np.float32)
    edges = np.linspace(float(x.min()), float(x.max()), 257)

    np.testing.assert_array_equal(count_between(x, edges), np.histogram(x, edges)[0])


def test_other_types_are_numpys_own() -> None:
    x = np.random.default_rng(0).normal(size=100)
    edges = np.linspace(-1, 1, 9)

    np.testing.assert_array_equal(count_between(x, edges), np.histogram(x, edges)[0])


def test_nothing_is_nothing() -> None:
    assert count_between(np.empty(0, np.float32), np.linspace(0, 1, 5)).tolist() == [0, 0, 0, 0]
