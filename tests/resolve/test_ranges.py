from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from onnxruntime.quantization.calibrate import HistogramCollector

from lowbit.calibrate.growing import GrowingHistogram
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
from lowbit.config.specs import IntegerSpec
from lowbit.errors import CalibrationError
from lowbit.numerics.affine import choose_qparams
from lowbit.numerics.formats import IntegerFormat
from lowbit.scales.ranges import params_of, params_of_range, percentile_range
from lowbit.scales.search import best_params, code_range

_RNG = np.random.default_rng(3)
_SAMPLES = [(_RNG.laplace(size=5000) * (k + 1)).astype(np.float32) for k in range(4)]
_ALL = np.concatenate(_SAMPLES)


def _spec(method: Method, fmt: IntegerFormat = IntegerFormat.INT8, **options: bool) -> IntegerSpec:
    return IntegerSpec(format=fmt, method=method, **options)


def _log() -> TensorStats:
    return TensorStats.of(_ALL, histogram=True)


def _growing(bins: int, span: str) -> TensorStats:
    histogram = GrowingHistogram.first(_SAMPLES[0], bins, span)
    for sample in _SAMPLES[1:]:
        histogram = histogram.add(sample)
    return dataclasses.replace(TensorStats.of(_ALL, histogram=False), growing=histogram)


def _top(stats: TensorStats, spec: IntegerSpec) -> float:
    return code_range(params_of(stats, spec, "t"), spec)[1]


def test_minmax_takes_the_whole_range() -> None:
    spec = _spec(MinMax(), IntegerFormat.UINT8, symmetric=False)

    assert params_of(_log(), spec, "t") == choose_qparams(
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


@pytest.mark.parametrize("percent", [99.0, 99.9, 99.999])
@pytest.mark.parametrize("symmetric", [True, False])
def test_growing_percentiles_are_onnxruntimes(
    percent: float, symmetric: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    collector = HistogramCollector("percentile", symmetric, 2048, 128, percent, "same")
    for sample in _SAMPLES:
        collector.collect({"t": sample})
    low, high = (float(v) for v in collector.compute_percentile()["t"][:2])
    capsys.readouterr()
    method = Percentile(percentile=percent, histogram="growing", symmetric_range=symmetric)

    params = params_of(
        _growing(2048, "absolute" if symmetric else "symmetric"),
        _spec(method, IntegerFormat.UINT8, symmetric=False),
        "t",
    )

    assert params == choose_qparams(low, high, IntegerFormat.UINT8, symmetric=False)


def test_growing_entropy_is_onnxruntimes(capsys: pytest.CaptureFixture[str]) -> None:
    collector = HistogramCollector("entropy", False, 128, 128, 99.9, "same")
    for sample in _SAMPLES:
        collector.collect({"t": sample})
    low, high = (float(v) for v in collector.compute_entropy()["t"][:2])
    capsys.readouterr()

    params = params_of(
        _growing(128, "symmetric"), _spec(Entropy(histogram="growing", bins=128)), "t"
    )

    assert params == choose_qparams(low, high, IntegerFormat.INT8, symmetric=True)


def test_entropy_on_the_log_histogram_clips_the_tail_and_keeps_the_bulk() -> None:
    x = np.concatenate([_RNG.normal(size=100_000), [60.0, -55.0]]).astype(np.float32)

    high = _top(TensorStats.of(x, histogram=True), _spec(Entropy()))

    assert 2.5 < high < 30


def test_distribution_reaches_so_many_deviations_from_the_mean() -> None:
    x = (_RNG.normal(2.0, 1.0, size=100_000)).astype(np.float32)
    spec = _spec(Distribution(deviations=2.0), IntegerFormat.UINT8, symmetric=False)

    params = params_of(TensorStats.of(x, histogram=True), spec, "t")

    expected = choose_qparams(
        x.mean() - 2 * x.std(), x.mean() + 2 * x.std(), IntegerFormat.UINT8, symmetric=False
    )
    assert float(params.scale) == pytest.approx(float(expected.scale), rel=0.01)


def test_distribution_never_goes_beyond_what_was_seen() -> None:
    x = _RNG.uniform(-1, 1, size=1000).astype(np.float32)
    stats = TensorStats.of(x, histogram=True)

    assert params_of(stats, _spec(Distribution()), "t") == choose_qparams(
        x.min(), x.max(), IntegerFormat.INT8, symmetric=True
    )


@pytest.mark.parametrize("metric", ["mae", "mse"])
@pytest.mark.parametrize("histogram", ["log", "growing"])
def test_layerwise_takes_the_candidate_of_least_error(metric: str, histogram: str) -> None:
    candidates = (80.0, 99.0, 99.9, 100.0)
    method = LayerwisePercentile(candidates=candidates, metric=metric, histogram=histogram)
    stats = _log() if histogram == "log" else _growing(2048, "absolute")

    top = _top(stats, _spec(method))

    power = 1 if metric == "mae" else 2
    values = np.abs(_ALL) if histogram == "growing" else _ALL
    tops = [float(np.percentile(np.abs(_ALL), p)) for p in candidates]
    errors = []
    for t in tops:
        scale = t / 127
        back = np.clip(np.rint(values / scale), -127, 127) * scale
        errors.append(np.mean(np.abs(values - back) ** power))
    assert top == pytest.approx(tops[int(np.argmin(errors))], rel=0.02)


@pytest.mark.parametrize("top", [1.0, 1.5, 127 / 128, 100.0, 3e-5])
def test_nonoverflow_holds_everything_in_the_finest_power_of_two(top: float) -> None:
    stats = TensorStats.of(np.array([-top / 2, top], np.float32), histogram=False)

    params = params_of(stats, _spec(NonOverflow(), power_of_two=True), "t")

    scale = float(params.scale)
    assert np.frexp(scale)[0] == 0.5
    assert 127 * scale * (1 + 1e-5) >= top > 127 * scale / 2 * (1 - 1e-5)


def test_quarks_nonoverflow_rounds_to_the_nearest_power() -> None:
    stats = TensorStats.of(np.array([10.5], np.float32), histogram=False)

    params = params_of(stats, _spec(NonOverflow(nearest=True), power_of_two=True), "t")

    assert float(params.scale) == 0.0625


def test_quarks_power_of_two_search_takes_errors_at_bin_centres() -> None:
    stats = _growing(2048, "signed")
    spec = _spec(MinMse(histogram="growing"), power_of_two=True)

    position = params_of(stats, spec, "t").position

    growing = stats.growing
    assert growing is not None
    centres = (growing.edges[1:] + growing.edges[:-1]) / 2
    start = round(-np.log2(np.abs(_ALL).max() / 127))
    errors = {}
    for p in range(start - 1, start + 4):
        back = np.clip(np.rint(centres * 2.0**p), -127, 127) / 2.0**p
        errors[p] = float((growing.counts * (centres - back) ** 2).sum())
    assert position == min(errors, key=lambda p: errors[p])


def test_mse_on_the_log_histogram_is_the_search() -> None:
    from lowbit.scales.density import Density

    spec, stats = _spec(MinMse()), _log()

    expected = best_params(Density.of(stats), stats.low, stats.high, spec)
    assert params_of(stats, spec, "t") == expected


@pytest.mark.parametrize("power_of_two", [True, False])
def test_a_tensor_nothing_was_seen_of_gets_parameters_all_the_same(power_of_two: bool) -> None:
    spec = _spec(MinMse(), power_of_two=power_of_two)

    assert float(params_of(TensorStats(0.0, 0.0, 0, 9), spec, "t").scale) == 1.0


def test_fixed_ranges_are_rounded_up_to_powers_of_two() -> None:
    spec = _spec(MinMse(), power_of_two=True)

    assert float(params_of_range((0.0, 1.0), spec).scale) == 2.0**-6


@pytest.mark.parametrize(
    "method", [Percentile(histogram="growing"), MinMse(histogram="growing"), Percentile()]
)
def test_statistics_of_another_kind_are_refused(method: Method) -> None:
    plain = TensorStats.of(_ALL, histogram=False)

    with pytest.raises(CalibrationError, match="'act'"):
        params_of(plain, _spec(method, power_of_two=isinstance(method, MinMse)), "act")


@pytest.mark.parametrize(
    "method", [Percentile(), Entropy(), Distribution(), LayerwisePercentile(), MinMse()]
)
def test_values_too_small_for_the_histogram_keep_their_range(method: Method) -> None:
    x = np.array([1e-12, -3e-12, 2e-12], np.float32)

    top = _top(TensorStats.of(x, histogram=True), _spec(method))

    assert top == pytest.approx(3e-12, rel=0.01)
