"""Against onnxruntime's own search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from lowbit.scales.ranges import entropy_window


def _onnxruntimes(counts: np.ndarray, levels: int) -> tuple[float, float]:
    collector = HistogramCollector("entropy", False, len(counts), levels, 99.9, "same")
    edges = np.linspace(-1, 1, len(counts) + 1, dtype=np.float32)
    far = np.float32(9)
    low, high = collector.get_entropy_threshold((counts, edges, -far, far, far), levels)
    return float(low), float(high)


def _ours(counts: np.ndarray, levels: int) -> tuple[float, float]:
    edges = np.linspace(-1, 1, len(counts) + 1, dtype=np.float32)
    start, end = entropy_window(counts, levels)
    return float(edges[start]), float(edges[end])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    bins=st.sampled_from([128, 150, 257, 300]),
    levels=st.sampled_from([16, 64, 128]),
    tail=st.floats(0.02, 0.5),
    empty=st.floats(0, 0.8),
)
def test_the_window_is_onnxruntimes(
    seed: int, bins: int, levels: int, tail: float, empty: float
) -> None:
    rng = np.random.default_rng(seed)
    places = np.linspace(-1, 1, bins)
    counts = rng.poisson(2000 * np.exp(-np.abs(places) / tail)).astype(np.int64)
    counts[rng.random(bins) < empty] = 0

    assert _ours(counts, levels) == _onnxruntimes(counts, levels)


@pytest.mark.parametrize("counts", [np.zeros(128, np.int64), np.eye(1, 129, 64, dtype=np.int64)[0]])
def test_histograms_of_next_to_nothing_keep_a_window(counts: np.ndarray) -> None:
    start, end = entropy_window(counts, 128)

    assert 0 <= start < end <= len(counts)
