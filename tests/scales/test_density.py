"""Densities of histograms against the samples they were made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.calibrate.sensitivity import Sensitivity
from lowbit.calibrate.statistics import TensorStats
from lowbit.errors import CalibrationError
from lowbit.scales.density import Density, SensitiveDensity

_RNG = np.random.default_rng(0)
_SHAPES = {
    "normal": _RNG.normal(size=400_000),
    "relu": np.maximum(_RNG.normal(size=400_000), 0),
    "laplace": _RNG.laplace(size=400_000),
    "shifted": _RNG.normal(5.0, 1.0, size=400_000),
    "outliers": np.concatenate([_RNG.normal(size=399_900), _RNG.normal(size=100) * 50]),
    "uniform": _RNG.uniform(-1, 3, size=400_000),
}


def _density(x: np.ndarray, *, absolute: bool = False) -> Density:
    stats = TensorStats.of(x.astype(np.float32), histogram=True)
    return Density.of(stats, absolute=absolute)


def _brute_force(x: np.ndarray, scale: float, low: int, high: int) -> float:
    x = x.astype(np.float32).astype(np.float64)
    return float(np.mean((x - np.clip(np.rint(x / scale), low, high) * scale) ** 2))


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("high", [127, 32767, 7])
@pytest.mark.parametrize("ratio", [1.0, 0.6, 0.15, 1.7])
def test_the_error_is_that_of_quantizing_the_samples(shape: str, high: int, ratio: float) -> None:
    x = _SHAPES[shape]
    scale = ratio * float(np.abs(x).max()) / high

    error = _density(x).squared_error(
        np.array([scale]), np.array([-high * scale]), np.array([high * scale])
    )[0]

    # At 16 bits a bin is wider than a step, so the few largest values' places in theirs matter.
    assert error == pytest.approx(_brute_force(x, scale, -high, high), rel=0.02)


def test_asymmetric_code_ranges_clip_each_side_on_its_own() -> None:
    x = _SHAPES["normal"]
    scale = 0.02

    error = _density(x).squared_error(
        np.array([scale]), np.array([-20 * scale]), np.array([100 * scale])
    )[0]

    assert error == pytest.approx(_brute_force(x, scale, -20, 100), rel=0.01)


def test_many_candidates_are_priced_at_once() -> None:
    scale = np.geomspace(0.01, 0.05, 20)  # of so many bins not all fit into one block
    density = _density(_SHAPES["normal"])

    together = density.squared_error(scale, -127 * scale, 127 * scale)

    one_by_one = [
        density.squared_error(np.array([s]), np.array([-127 * s]), np.array([127 * s]))[0]
        for s in scale
    ]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-12)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    value=st.floats(2.0**-20, 2.0**20).map(np.float32),
    scale=st.floats(2.0**-10, 2.0**10),
    sign=st.sampled_from([-1, 1]),
)
def test_a_constant_tensor_has_the_error_of_its_one_value(
    value: np.float32, scale: float, sign: int
) -> None:
    x = np.full(10, sign * value, np.float32)

    error = _density(x).squared_error(
        np.array([scale]), np.array([-127 * scale]), np.array([127 * scale])
    )[0]

    assert error == pytest.approx(_brute_force(x, scale, -127, 127), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("shape", _SHAPES)
def test_power_is_the_mean_square(shape: str) -> None:
    x = _SHAPES[shape]

    assert _density(x).power() == pytest.approx(np.mean(x**2), rel=1e-3)


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("fraction", [0.001, 0.25, 0.5, 0.9, 0.999, 0.99999])
def test_quantiles_are_numpys(shape: str, fraction: float) -> None:
    x = _SHAPES[shape]

    got = _density(x).quantile(fraction)

    # Within a bin's width, and between the neighbouring order statistics at the thin ends.
    near = np.quantile(x, [max(fraction - 2e-5, 0), min(fraction + 2e-5, 1)])
    assert near[0] - 0.01 * abs(near[0]) - 1e-6 <= got <= near[1] + 0.01 * abs(near[1]) + 1e-6


def test_the_ends_of_the_distribution_are_the_extremes() -> None:
    x = _SHAPES["normal"].astype(np.float32)

    assert _density(x).quantile(0.0) == pytest.approx(x.min())
    assert _density(x).quantile(1.0) == pytest.approx(x.max())


def test_absolute_values_have_one_side_only() -> None:
    x = _SHAPES["normal"]

    density = _density(x, absolute=True)

    assert (density.start >= 0).all()
    assert density.quantile(0.5) == pytest.approx(np.quantile(np.abs(x), 0.5), rel=0.01)


@pytest.mark.parametrize("shape", _SHAPES)
def test_linear_bins_hold_what_numpys_histogram_holds(shape: str) -> None:
    x = _SHAPES[shape].astype(np.float32)
    top = float(np.abs(x).max())
    edges = np.linspace(-top, top, 65)

    counts = _density(x).linear(edges)

    expected = np.histogram(x, edges)[0]
    assert counts.sum() == pytest.approx(len(x), rel=1e-6)
    assert np.abs(counts - expected).max() < 0.01 * len(x)


def test_values_beyond_the_last_bin_reach_to_the_observed_extreme() -> None:
    density = _density(np.array([1e20, -3e19, 5e19], np.float32))

    assert density.end.max() == pytest.approx(1e20)
    assert density.start.min() >= -1e20


def test_statistics_without_a_histogram_are_refused() -> None:
    with pytest.raises(CalibrationError, match="'conv_out' have no histogram"):
        Density.of(TensorStats(0.0, 1.0, 5), "conv_out")


def test_a_coarser_density_holds_the_same_values_in_fewer_bins() -> None:
    """What lies apart stays apart: an outlier is not smeared over the gap before it."""
    values = np.concatenate((np.random.default_rng(0).normal(size=20_000), [500.0, -80.0]))
    fine = Density.of(TensorStats.of(values.astype(np.float32), histogram=True))

    coarse = fine.coarser(4)

    assert len(coarse.start) < len(fine.start) / 2
    assert coarse.total == fine.total
    assert coarse.power() == pytest.approx(fine.power(), rel=1e-3)
    assert (coarse.start[0], coarse.end[-1]) == (fine.start[0], fine.end[-1])
    assert coarse.start[-1] > 490
    assert coarse.end[0] < -78
    np.testing.assert_array_less(coarse.start[:-1], coarse.end[:-1] + 1e-12)
    assert (coarse.start[1:] >= coarse.end[:-1]).all()


@pytest.mark.parametrize(("scale", "low", "high"), [(0.1, -1.0, 1.2), (0.03, -0.4, 5.0)])
def test_errors_at_the_outputs_are_those_of_rounding_and_of_clipping(
    scale: float, low: float, high: float
) -> None:
    """Squares of rounding errors add up, what is clipped adds up before it is squared."""
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(1, 200_000)).astype(np.float32) for _ in range(2))
    sensitivity = Sensitivity.of(x, g + 1, rows=1)
    density = SensitiveDensity.of_sensitivity(TensorStats.of(x, histogram=True), sensitivity)

    (found,) = density.squared_error(np.array([scale]), np.array([low]), np.array([high]))

    x, g = x.astype(np.float64), g + 1.0
    inside = np.clip(x, low, high)
    rounding = np.square(g * (np.rint(inside / scale) * scale - inside))
    cut = [((g * side).sum()) ** 2 for side in (np.maximum(x - high, 0), np.minimum(x - low, 0))]
    beyond = (x > high) | (x < low)
    assert found == pytest.approx(rounding[~beyond].sum() + sum(cut), rel=0.05)


def test_largest_numbers_cost_something_to_clip_where_no_gradient_was_taken_of_them() -> None:
    """As if each counted as much as the largest of those whose gradients are known."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (1, 200_000)).astype(np.float32)
    x[:, :6] = 2.2, 3.1, 3.7, -2.4, -2.5, -3.9
    g = rng.normal(size=x.shape).astype(np.float32)
    seen = np.abs(x) < 1
    sensitivity = Sensitivity.of(x[seen][None], g[seen][None], rows=1)
    density = SensitiveDensity.of_sensitivity(TensorStats.of(x, histogram=True), sensitivity)

    limits = np.array([2.0, 5.0])
    errors = density.squared_error(np.full(2, 0.01), -limits, limits)

    cut = np.square(np.maximum(np.abs(x.astype(np.float64)) - 2, 0)).sum()
    assert errors[0] - errors[1] == pytest.approx(cut, rel=0.05)


def test_numbers_that_are_zero_cost_nothing() -> None:
    x = np.zeros((1, 9), np.float32)
    sensitivity = Sensitivity.of(x, np.ones((1, 9), np.float32), rows=1)
    stats = TensorStats.of(x, histogram=True)

    assert not len(SensitiveDensity.of_sensitivity(stats, sensitivity).weight)
