"""Against onnxruntime's own collector, whose histograms these are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from lowbit.calibrate.growing import GrowingHistogram, Span
from lowbit.errors import CalibrationError

_CALM = settings(max_examples=60, deadline=None, derandomize=True)
_BATCHES = st.lists(
    st.tuples(st.integers(0, 2**31), st.floats(0.1, 30.0), st.floats(-2.0, 2.0)),
    min_size=1,
    max_size=5,
)


def _samples(recipe: list[tuple[int, float, float]]) -> list[np.ndarray]:
    return [
        (np.random.default_rng(seed).normal(shift, size, 200)).astype(np.float32)
        for seed, size, shift in recipe
    ]


def _ours(samples: list[np.ndarray], bins: int, span: Span) -> GrowingHistogram:
    histogram = GrowingHistogram.first(samples[0], bins, span)
    for sample in samples[1:]:
        histogram = histogram.add(sample)
    return histogram


def _theirs(samples: list[np.ndarray], bins: int, *, absolute: bool) -> tuple:
    collector = HistogramCollector("entropy", absolute, bins, 128, 99.999, "same")
    gather = collector.collect_absolute_value if absolute else collector.collect_value
    for sample in samples:
        gather({"t": sample})
    return collector.histogram_dict["t"]


@_CALM
@given(recipe=_BATCHES, bins=st.sampled_from([16, 128, 2048]))
def test_absolute_values_are_counted_as_onnxruntime_does(
    recipe: list[tuple[int, float, float]], bins: int
) -> None:
    samples = _samples(recipe)

    ours, theirs = _ours(samples, bins, "absolute"), _theirs(samples, bins, absolute=True)

    np.testing.assert_array_equal(ours.counts, theirs[0])
    np.testing.assert_array_equal(ours.edges, theirs[1])
    assert (ours.low, ours.high) == (theirs[2], theirs[3])


@_CALM
@given(recipe=_BATCHES, bins=st.sampled_from([16, 128, 2048]), zeros=st.integers(0, 2))
def test_values_around_zero_are_counted_as_onnxruntime_does(
    recipe: list[tuple[int, float, float]], bins: int, zeros: int
) -> None:
    samples = [np.zeros(50, np.float32)] * zeros + _samples(recipe)

    ours, theirs = _ours(samples, bins, "symmetric"), _theirs(samples, bins, absolute=False)

    np.testing.assert_array_equal(ours.counts, theirs[0])
    np.testing.assert_array_equal(ours.edges, theirs[1])
    assert (ours.low, ours.high) == (theirs[2], theirs[3])


@_CALM
@given(recipe=_BATCHES)
def test_signed_bins_keep_their_width_and_lose_nothing(
    recipe: list[tuple[int, float, float]],
) -> None:
    samples = _samples(recipe)

    histogram = _ours(samples, 64, "signed")

    everything = np.concatenate(samples).astype(np.float64)
    width = (float(samples[0].max()) - float(samples[0].min())) / 64
    assert histogram.counts.sum() == everything.size
    np.testing.assert_allclose(np.diff(histogram.edges), width, rtol=1e-9)
    # A sample's largest value lies on the last edge, which the next bins turn into an inner one.
    moved = np.abs(np.histogram(everything, histogram.edges)[0] - histogram.counts).sum()
    assert moved <= 2 * len(samples)


@pytest.mark.parametrize("span", ["absolute", "symmetric", "signed"])
def test_a_first_sample_far_too_small_is_refused_instead_of_filling_memory(span: Span) -> None:
    histogram = GrowingHistogram.first(np.array([1e-9, -1e-9, 5e-10], np.float32), 2048, span)

    with pytest.raises(CalibrationError, match="put a typical sample first"):
        histogram.add(np.array([1e3], np.float32))


@pytest.mark.parametrize("span", ["absolute", "symmetric", "signed"])
def test_constant_samples_are_counted(span: Span) -> None:
    histogram = GrowingHistogram.first(np.full(10, 2.0, np.float32), 8, span)

    assert histogram.add(np.full(5, 2.0, np.float32)).counts.sum() == 15
