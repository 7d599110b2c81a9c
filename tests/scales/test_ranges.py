"""Ranges by every method against the samples, and entropy against onnxruntime's own search."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from lowbit.calibrate.statistics import TensorStats
from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    Percentile,
)
from lowbit.config.specs import BLOCKS, FloatSpec, IntegerSpec, Spec
from lowbit.errors import CalibrationError
from lowbit.numerics.affine import (
    QParams,
    dequantize,
    power_of_two_qparams,
    quantize,
    range_qparams,
)
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.scales.density import Density
from lowbit.scales.ranges import (
    entropy_window,
    error_at,
    params_of,
    params_of_range,
    percentile_range,
    range_of,
)
from lowbit.scales.search import best_params, code_range

_RNG = np.random.default_rng(3)
_SAMPLES = [(_RNG.laplace(size=5000) * (k + 1)).astype(np.float32) for k in range(4)]
_ALL = np.concatenate(_SAMPLES)


def _spec(method: Method, fmt: IntegerFormat = IntegerFormat.INT8, **options: bool) -> IntegerSpec:
    return IntegerSpec(format=fmt, method=method, **options)


def _log() -> TensorStats:
    return TensorStats.of(_ALL, histogram=True)


def _top(stats: TensorStats, spec: IntegerSpec) -> float:
    return code_range(params_of(stats, spec, "t"), spec)[1]


def test_minmax_takes_the_whole_range() -> None:
    spec = _spec(MinMax(), IntegerFormat.UINT8, symmetric=False)

    assert params_of(_log(), spec, "t") == range_qparams(
        _ALL.min(), _ALL.max(), IntegerFormat.UINT8, symmetric=False
    )


def test_a_moving_average_is_taken_where_there_is_one() -> None:
    stats = dataclasses.replace(TensorStats.of(_ALL, histogram=False), average=(-1.0, 2.0))

    params = params_of(stats, _spec(MinMax(moving_average=0.1)), "t")

    assert float(params.scale) == np.float32(4 / 254)


@pytest.mark.parametrize("percent", [90.0, 99.0, 99.9])
def test_a_symmetric_percentile_is_that_of_the_absolute_values(percent: float) -> None:
    low, high = percentile_range(_log(), percent, symmetric=True, name="t")

    assert high == pytest.approx(np.percentile(np.abs(_ALL), percent), rel=0.01)
    assert low == pytest.approx(-high)


@pytest.mark.parametrize("percent", [90.0, 99.0])
def test_an_asymmetric_percentile_cuts_half_on_each_side(percent: float) -> None:
    low, high = percentile_range(_log(), percent, symmetric=False, name="t")

    expected = np.percentile(_ALL, [(100 - percent) / 2, 100 - (100 - percent) / 2])
    assert (low, high) == pytest.approx(tuple(expected), rel=0.02)


def test_a_percentile_of_nothing_but_zeros_falls_back_to_the_whole_range() -> None:
    sparse = np.zeros(10_000, np.float32)
    sparse[:3] = [1.0, 2.0, -3.0]

    for symmetric in (True, False):
        low, high = percentile_range(
            TensorStats.of(sparse, histogram=True), 99.0, symmetric=symmetric, name="t"
        )
        assert (low, high) == (-3.0, 2.0)


def test_entropy_on_the_log_histogram_clips_the_tail_and_keeps_the_bulk() -> None:
    x = np.concatenate([_RNG.normal(size=100_000), [60.0, -55.0]]).astype(np.float32)

    high = _top(TensorStats.of(x, histogram=True), _spec(Entropy()))

    assert 2.5 < high < 30


def test_distribution_reaches_so_many_deviations_from_the_mean() -> None:
    x = (_RNG.normal(2.0, 1.0, size=100_000)).astype(np.float32)
    spec = _spec(Distribution(deviations=2.0), IntegerFormat.UINT8, symmetric=False)

    params = params_of(TensorStats.of(x, histogram=True), spec, "t")

    expected = range_qparams(
        x.mean() - 2 * x.std(), x.mean() + 2 * x.std(), IntegerFormat.UINT8, symmetric=False
    )
    assert float(params.scale) == pytest.approx(float(expected.scale), rel=0.01)


def test_distribution_never_goes_beyond_what_was_seen() -> None:
    x = _RNG.uniform(-1, 1, size=1000).astype(np.float32)
    stats = TensorStats.of(x, histogram=True)

    assert params_of(stats, _spec(Distribution()), "t") == range_qparams(
        x.min(), x.max(), IntegerFormat.INT8, symmetric=True
    )


@pytest.mark.parametrize("metric", ["mae", "mse"])
def test_layerwise_takes_the_candidate_of_least_error(metric: str) -> None:
    candidates = (80.0, 99.0, 99.9, 100.0)
    method = LayerwisePercentile(candidates=candidates, metric=metric)

    top = _top(_log(), _spec(method))

    power = 1 if metric == "mae" else 2
    tops = [float(np.percentile(np.abs(_ALL), p)) for p in candidates]
    errors = []
    for t in tops:
        scale = t / 127
        back = np.clip(np.rint(_ALL / scale), -127, 127) * scale
        errors.append(np.mean(np.abs(_ALL - back) ** power))
    assert top == pytest.approx(tops[int(np.argmin(errors))], rel=0.02)


@pytest.mark.parametrize("top", [1.0, 1.5, 127 / 128, 100.0, 3e-5])
def test_nonoverflow_holds_everything_in_the_finest_power_of_two(top: float) -> None:
    stats = TensorStats.of(np.array([-top / 2, top], np.float32), histogram=False)

    params = params_of(stats, _spec(NonOverflow(), power_of_two=True), "t")

    scale = float(params.scale)
    assert np.frexp(scale)[0] == 0.5
    assert 127 * scale * (1 + 1e-5) >= top > 127 * scale / 2 * (1 - 1e-5)


def test_nonoverflow_rounds_to_the_nearest_power_if_asked_to() -> None:
    stats = TensorStats.of(np.array([10.5], np.float32), histogram=False)

    params = params_of(stats, _spec(NonOverflow(nearest=True), power_of_two=True), "t")

    assert float(params.scale) == 0.0625


def test_mse_on_the_log_histogram_is_the_search() -> None:
    spec, stats = _spec(MinMse()), _log()

    expected = best_params(Density.of(stats), stats.low, stats.high, spec)
    assert params_of(stats, spec, "t") == expected


@pytest.mark.parametrize("power_of_two", [True, False])
def test_a_tensor_nothing_was_seen_of_gets_parameters_all_the_same(power_of_two: bool) -> None:
    spec = _spec(MinMse(), power_of_two=power_of_two)

    assert float(params_of(TensorStats(0.0, 0.0, 0, 9), spec, "t").scale) == 1.0


@pytest.mark.parametrize(
    ("limits", "scale"),
    [
        ((-1.28, 1.27), 0.01),  # all integers
        ((-1.28, 1.26), 1.28 / 127),
        ((-1.27, 1.28), 1.28 / 127),
        ((-1.27, 1.27), 0.01),
        ((-1.28, 0.0), 1.28 / 127),
    ],
)
def test_a_range_of_all_integers_has_their_scale(limits: tuple[float, float], scale: float) -> None:
    spec = IntegerSpec(format=IntegerFormat.INT8)
    assert float(params_of_range(limits, spec).scale) == pytest.approx(scale, rel=1e-6)
    wide = msgspec.structs.replace(spec, format=IntegerFormat.INT16)
    largest = max(-limits[0], limits[1])
    assert float(params_of_range(limits, wide).scale) == pytest.approx(largest / 32767, rel=1e-6)


def test_fixed_ranges_are_rounded_up_to_powers_of_two() -> None:
    spec = _spec(MinMse(), power_of_two=True)

    assert float(params_of_range((0.0, 1.0), spec).scale) == 2.0**-6


@pytest.mark.parametrize(
    "method", [Percentile(), LayerwisePercentile(), Entropy(), Distribution(), MinMse()]
)
def test_statistics_without_a_histogram_are_refused(method: Method) -> None:
    plain = TensorStats.of(_ALL, histogram=False)

    with pytest.raises(CalibrationError, match=r"of 'act' have no histogram.*collect them again"):
        params_of(plain, _spec(method), "act")


class _Third(Method, msgspec.Struct, frozen=True, tag="test-third"):
    """A method of one's own: a third of the observed range."""

    rounds_to_nearest: ClassVar[bool] = True

    def range_of(self, statistics: TensorStats, spec: Spec, name: str) -> tuple[float, float]:
        assert (spec.calibration, name) == (self, "t")
        return statistics.low / 3, statistics.high / 3


class _Fixed(Method, msgspec.Struct, frozen=True, tag="test-fixed"):
    """A method of one's own that gives parameters, not a range."""

    bits: int = 5

    def parameters_of(self, statistics: TensorStats, spec: IntegerSpec, name: str) -> QParams:
        assert (statistics.count, name) == (2, "t")
        return power_of_two_qparams(self.bits, spec.format)


def test_a_method_of_ones_own_chooses_the_range() -> None:
    stats = TensorStats.of(np.array([-3.0, 12.0], np.float32), histogram=False)

    params = params_of(stats, _spec(_Third(), IntegerFormat.UINT8, symmetric=False), "t")
    power = params_of(stats, _spec(_Third(), power_of_two=True), "t")

    assert params == range_qparams(-1.0, 4.0, IntegerFormat.UINT8, symmetric=False)
    # 4 / 127 is nearest to 2 ** -5, which clips a little.
    assert power.fraction_bits == 5
    scaled = FloatSpec(format=FloatFormat.BFLOAT16, scaled=True, method=_Third())
    assert range_of(stats, scaled, "t") == (-1.0, 4.0)


def test_a_method_of_ones_own_may_choose_parameters() -> None:
    stats = TensorStats.of(np.array([-3.0, 12.0], np.float32), histogram=False)

    assert params_of(stats, _spec(_Fixed(bits=2)), "t").fraction_bits == 2
    # Of a tensor that nothing was seen of nobody is asked.
    assert float(params_of(TensorStats(0.0, 0.0, 0), _spec(_Fixed()), "t").scale) == 1.0


def test_formats_without_a_scale_have_no_range() -> None:
    with pytest.raises(TypeError, match="mx6 blocks of 16 has no range"):
        range_of(_log(), BLOCKS["MX6"], "t")


@pytest.mark.parametrize("power", [1, 2])
def test_errors_at_values_are_those_of_quantizing_them(power: int) -> None:
    values, weights = np.linspace(-4, 4, 50), np.arange(50)
    spec = _spec(MinMax(), IntegerFormat.UINT8, symmetric=False, reduce_range=True)
    params = range_qparams(-1.0, 3.0, spec.format, symmetric=False, reduce_range=True)

    found = error_at(values, weights, params, spec, power=power)

    codes = quantize(values.astype(np.float32), params, (0, 127))
    back = dequantize(codes, params)
    assert found == pytest.approx((weights * np.abs(values - back) ** power).sum(), rel=1e-4)


@pytest.mark.parametrize(
    "method", [Percentile(), Entropy(), Distribution(), LayerwisePercentile(), MinMse()]
)
def test_values_too_small_for_the_histogram_keep_their_range(method: Method) -> None:
    x = np.array([1e-12, -3e-12, 2e-12], np.float32)

    top = _top(TensorStats.of(x, histogram=True), _spec(method))

    assert top == pytest.approx(3e-12, rel=0.01)


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
    at = np.linspace(-1, 1, bins)
    counts = rng.poisson(2000 * np.exp(-np.abs(at) / tail)).astype(np.int64)
    counts[rng.random(bins) < empty] = 0

    assert _ours(counts, levels) == _onnxruntimes(counts, levels)


@pytest.mark.parametrize("counts", [np.zeros(128, np.int64), np.eye(1, 129, 64, dtype=np.int64)[0]])
def test_histograms_of_next_to_nothing_keep_a_window(counts: np.ndarray) -> None:
    start, end = entropy_window(counts, 128)

    assert 0 <= start < end <= len(counts)
