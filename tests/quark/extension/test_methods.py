"""Quark's calibration methods: histograms against NumPy's and onnxruntime's, choices against both.

The parameters in the table are those of the version of this package before Quark's methods were
classes of their own.
"""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import pytest
from helpers.runtime_versions import histograms_of_numpy_2
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization.calibrate import HistogramCollector

from lowbit.calibrate.statistics import TensorStats
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import decode_json
from lowbit.config.methods import Method, MinMse
from lowbit.config.specs import FloatSpec, IntegerSpec
from lowbit.errors import CalibrationError, ConfigError
from lowbit.numerics.affine import range_qparams
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.quark.extension import methods
from lowbit.quark.extension.methods import (
    GrowingHistogram,
    GrowingObserver,
    QuarkEntropy,
    QuarkLayerwisePercentile,
    QuarkMinMse,
    QuarkPercentile,
    Span,
    count_between,
)
from lowbit.scales.ranges import params_of, params_of_range, range_of
from lowbit.scales.search import code_range
from lowbit.scales.weights import weight_params

_CALM = settings(max_examples=60, deadline=None, derandomize=True)
_BATCHES = st.lists(
    st.tuples(st.integers(0, 2**31), st.floats(0.1, 30.0), st.floats(-2.0, 2.0)),
    min_size=1,
    max_size=5,
)


def _drawn(recipe: list[tuple[int, float, float]]) -> list[np.ndarray]:
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
    samples = _drawn(recipe)

    ours, theirs = _ours(samples, bins, "absolute"), _theirs(samples, bins, absolute=True)

    np.testing.assert_array_equal(ours.counts, theirs[0])
    np.testing.assert_array_equal(ours.edges, theirs[1])
    assert (ours.low, ours.high) == (theirs[2], theirs[3])


@histograms_of_numpy_2
@_CALM
@given(recipe=_BATCHES, bins=st.sampled_from([16, 128, 2048]), zeros=st.integers(0, 2))
def test_values_around_zero_are_counted_as_onnxruntime_does(
    recipe: list[tuple[int, float, float]], bins: int, zeros: int
) -> None:
    samples = [np.zeros(50, np.float32)] * zeros + _drawn(recipe)

    ours, theirs = _ours(samples, bins, "symmetric"), _theirs(samples, bins, absolute=False)

    np.testing.assert_array_equal(ours.counts, theirs[0])
    np.testing.assert_array_equal(ours.edges, theirs[1])
    assert (ours.low, ours.high) == (theirs[2], theirs[3])


def test_bins_around_zero_are_float32_with_any_numpy() -> None:
    first, larger = np.float32([-0.7, 0.3]), np.float32([0.1, 5.3])

    histogram = GrowingHistogram.first(first, 6, "symmetric").add(larger)

    # By hand, each step rounded to float32: steps of 1.4 / 6, 20 more of them on either side.
    width = np.float32(np.float32(1.4) / np.float32(6))
    top = np.float32(np.float32(20) * width + np.float32(0.7))
    assert histogram.edges.dtype == np.float32
    assert len(histogram.counts) == 46
    assert histogram.edges[-1] == top


@_CALM
@given(recipe=_BATCHES)
def test_signed_bins_keep_their_width_and_lose_nothing(
    recipe: list[tuple[int, float, float]],
) -> None:
    samples = _drawn(recipe)

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


@settings(max_examples=80, deadline=None, derandomize=True)
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
    monkeypatch.setattr(methods, "_BLOCK", 64)
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


_RNG = np.random.default_rng(3)
_DATA = {
    "laplace": [(_RNG.laplace(size=5000) * (k + 1)).astype(np.float32) for k in range(4)],
    "relu": [
        np.maximum(_RNG.normal(size=3000) * (1 + 0.5 * k), 0).astype(np.float32) for k in range(3)
    ],
    "shifted": [_RNG.normal(4.0, 1.0, size=2000).astype(np.float32) for _ in range(3)],
}
_SAMPLES = _DATA["laplace"]
_ALL = np.concatenate(_SAMPLES)
_METHODS = {
    "percentile": QuarkPercentile(percentile=99.9),
    "percentile both": QuarkPercentile(percentile=99.0, bins=256, symmetric_range=False),
    "entropy": QuarkEntropy(),
    "entropy fine": QuarkEntropy(bins=512, levels=64),
    "mse": QuarkMinMse(),
    "layerwise": QuarkLayerwisePercentile(candidates=(95.0, 99.0, 99.9)),
    "layerwise mse": QuarkLayerwisePercentile(
        candidates=(95.0, 99.0, 99.9), metric="mse", bins=512
    ),
}
# Scale and zero point as int8 symmetric, uint8 asymmetric, and both symmetric in powers of two.
_PARAMETERS = {
    ("laplace", "percentile"): ((0.16761397, 0), (0.16695666, 128), (0.125, 0), (0.125, 128)),
    ("laplace", "percentile both"): ((0.116555, 0), (0.11280648, 131), (0.125, 0), (0.125, 128)),
    ("laplace", "entropy"): ((0.26074672, 0), (0.22979243, 144), (0.25, 0), (0.25, 128)),
    ("laplace", "entropy fine"): ((0.17633447, 0), (0.17549337, 127), (0.125, 0), (0.125, 128)),
    ("laplace", "mse"): (None, None, (0.25, 0), (0.25, 128)),
    ("laplace", "layerwise"): ((0.16761397, 0), (0.16695666, 128), (0.125, 0), (0.125, 128)),
    ("laplace", "layerwise mse"): ((0.16761759, 0), (0.16696027, 128), (0.125, 0), (0.125, 128)),
    ("relu", "percentile"): ((0.041877575, 0), (0.020856675, 0), (0.03125, 0), (0.03125, 128)),
    ("relu", "percentile both"): ((0.033105429, 0), (0.016487801, 0), (0.03125, 0), (0.03125, 128)),
    ("relu", "entropy"): ((0.053212408, 0), (0.026501864, 0), (0.0625, 0), (0.0625, 128)),
    ("relu", "entropy fine"): ((0.035847295, 0), (0.017853359, 0), (0.03125, 0), (0.03125, 128)),
    ("relu", "mse"): (None, None, (0.0625, 0), (0.0625, 128)),
    ("relu", "layerwise"): ((0.041877575, 0), (0.020856675, 0), (0.03125, 0), (0.03125, 128)),
    ("relu", "layerwise mse"): ((0.041838758, 0), (0.020837342, 0), (0.03125, 0), (0.03125, 128)),
    ("shifted", "percentile"): ((0.055380069, 0), (0.027581446, 0), (0.0625, 0), (0.0625, 128)),
    ("shifted", "percentile both"): ((0.0514451, 0), (0.025621679, 0), (0.0625, 0), (0.0625, 128)),
    ("shifted", "entropy"): ((0.054818552, 0), (0.027301788, 0), (0.0625, 0), (0.0625, 128)),
    ("shifted", "entropy fine"): ((0.054186024, 0), (0.026986765, 0), (0.0625, 0), (0.0625, 128)),
    ("shifted", "mse"): (None, None, (0.0625, 0), (0.0625, 128)),
    ("shifted", "layerwise"): ((0.055380069, 0), (0.027581446, 0), (0.0625, 0), (0.0625, 128)),
    ("shifted", "layerwise mse"): ((0.055357039, 0), (0.027569976, 0), (0.0625, 0), (0.0625, 128)),
}


def _spec(method: Method, fmt: IntegerFormat = IntegerFormat.INT8, **options: bool) -> IntegerSpec:
    return IntegerSpec(format=fmt, method=method, **options)


def _observed(method: Method, samples: list[np.ndarray] = _SAMPLES) -> TensorStats:
    """Return the statistics that a method asks for, of samples in their order."""
    observer = method.observer().custom
    assert isinstance(observer, GrowingObserver)
    histogram = observer.start(samples[0])
    for sample in samples[1:]:
        histogram = histogram.add(sample)
    plain = TensorStats.of(np.concatenate(samples), histogram=False)
    return dataclasses.replace(plain, custom=histogram)


@pytest.mark.parametrize(("data", "name"), _PARAMETERS)
def test_parameters_are_those_of_the_former_version(data: str, name: str) -> None:
    method = _METHODS[name]
    stats = _observed(method, _DATA[data])
    specs = (
        _spec(method),
        _spec(method, IntegerFormat.UINT8, symmetric=False),
        _spec(method, power_of_two=True),
        _spec(method, IntegerFormat.UINT8, power_of_two=True),
    )

    for spec, expected in zip(specs, _PARAMETERS[data, name], strict=True):
        if expected is not None:
            params = params_of(stats, spec, "t")
            assert float(params.scale) == pytest.approx(expected[0], rel=1e-6)
            assert int(params.zero_point) == expected[1]


@pytest.mark.parametrize("percent", [99.0, 99.9, 99.999])
@pytest.mark.parametrize("symmetric", [True, pytest.param(False, marks=histograms_of_numpy_2)])
def test_percentiles_are_onnxruntimes(
    percent: float, symmetric: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    collector = HistogramCollector("percentile", symmetric, 2048, 128, percent, "same")
    for sample in _SAMPLES:
        collector.collect({"t": sample})
    low, high = (float(v) for v in collector.compute_percentile()["t"][:2])
    capsys.readouterr()
    method = QuarkPercentile(percentile=percent, symmetric_range=symmetric)

    params = params_of(_observed(method), _spec(method, IntegerFormat.UINT8, symmetric=False), "t")

    assert params == range_qparams(low, high, IntegerFormat.UINT8, symmetric=False)


@histograms_of_numpy_2
def test_entropy_is_onnxruntimes(capsys: pytest.CaptureFixture[str]) -> None:
    collector = HistogramCollector("entropy", False, 128, 128, 99.9, "same")
    for sample in _SAMPLES:
        collector.collect({"t": sample})
    low, high = (float(v) for v in collector.compute_entropy()["t"][:2])
    capsys.readouterr()

    params = params_of(_observed(QuarkEntropy()), _spec(QuarkEntropy()), "t")

    assert params == range_qparams(low, high, IntegerFormat.INT8, symmetric=True)


@pytest.mark.parametrize("metric", ["mae", "mse"])
def test_layerwise_takes_the_candidate_of_least_error(metric: str) -> None:
    candidates = (80.0, 99.0, 99.9, 100.0)
    method = QuarkLayerwisePercentile(candidates=candidates, metric=metric)

    _, top = code_range(params_of(_observed(method), _spec(method), "t"), _spec(method))

    power = 1 if metric == "mae" else 2
    values = np.abs(_ALL)
    tops = [float(np.percentile(values, p)) for p in candidates]
    errors = []
    for t in tops:
        back = np.clip(np.rint(values / (t / 127)), -127, 127) * (t / 127)
        errors.append(np.mean(np.abs(values - back) ** power))
    assert top == pytest.approx(tops[int(np.argmin(errors))], rel=0.02)


def test_the_power_of_two_search_takes_errors_at_bin_centres() -> None:
    stats = _observed(QuarkMinMse())

    bits = params_of(stats, _spec(QuarkMinMse(), power_of_two=True), "t").fraction_bits

    histogram = stats.custom
    assert isinstance(histogram, GrowingHistogram)
    centres = (histogram.edges[1:] + histogram.edges[:-1]) / 2
    start = round(-np.log2(np.abs(_ALL).max() / 127))
    errors = {}
    for f in range(start - 1, start + 4):
        back = np.clip(np.rint(centres * 2.0**f), -127, 127) / 2.0**f
        errors[f] = float((histogram.counts * (centres - back) ** 2).sum())
    assert bits == min(errors, key=lambda f: errors[f])


_WEIGHTS = np.random.default_rng(9)
_LAPLACE = _WEIGHTS.laplace(size=(8, 16)).astype(np.float32)
_TINY = (_WEIGHTS.normal(size=50) * 1e-4).astype(np.float32)
_CHANNELS = _WEIGHTS.laplace(size=(4, 30)) * np.geomspace(0.01, 3, 4)[:, None]


@pytest.mark.parametrize(
    ("weight", "fmt", "scale"),
    [
        (_LAPLACE, IntegerFormat.INT8, 2.0**-4),
        (_LAPLACE, IntegerFormat.UINT8, 2.0**-4),
        (_LAPLACE, IntegerFormat.INT16, 2.0**-12),
        (_TINY, IntegerFormat.INT8, 2.0**-19),
        (_TINY, IntegerFormat.INT16, 2.0**-27),
        (np.array([3.0], np.float32), IntegerFormat.INT8, 2.0**-4),
        (np.zeros(4, np.float32), IntegerFormat.INT8, 2.0),
        (np.zeros(0, np.float32), IntegerFormat.INT8, 2.0),
    ],
)
def test_scales_of_weights_are_those_of_the_former_version(
    weight: np.ndarray, fmt: IntegerFormat, scale: float
) -> None:
    spec = _spec(QuarkMinMse(), fmt, power_of_two=True)

    assert float(weight_params(weight, spec, None).scale) == scale


def test_each_channel_of_a_weight_has_a_scale_of_its_own() -> None:
    spec = _spec(QuarkMinMse(), power_of_two=True)

    params = weight_params(_CHANNELS.astype(np.float32), spec, 0)

    assert params.scale.tolist() == [2.0**-11, 2.0**-8, 2.0**-5, 2.0**-3]


def test_the_scale_of_a_weight_is_the_best_of_five_around_the_nearest() -> None:
    spec = _spec(QuarkMinMse(), power_of_two=True)

    bits = weight_params(_LAPLACE, spec, None).fraction_bits

    start = round(-np.log2(np.abs(_LAPLACE).max() / 127))
    errors = {}
    for f in range(start - 1, start + 4):
        back = np.clip(np.rint(_LAPLACE * 2.0**f), -127, 127) / 2.0**f
        errors[f] = float(np.square(_LAPLACE - back).sum())
    assert bits == min(errors, key=lambda f: errors[f])


@pytest.mark.parametrize("method", [QuarkPercentile(), QuarkEntropy(), QuarkLayerwisePercentile()])
def test_the_other_methods_are_not_for_weights(method: Method) -> None:
    with pytest.raises(ConfigError, match=f"{type(method).__name__} is not a method for weights"):
        weight_params(_LAPLACE, _spec(method), None)


@pytest.mark.parametrize("method", _METHODS.values(), ids=_METHODS)
def test_fixed_ranges_get_the_nearest_power_of_two_as_in_quark(method: Method) -> None:
    """The scale of -10.5 to 3 is 0.083: the nearest power clips, the next larger does not."""
    limits = (-10.5, 3.0)

    assert float(params_of_range(limits, _spec(method, power_of_two=True)).scale) == 2.0**-4
    assert float(params_of_range(limits, _spec(MinMse(), power_of_two=True)).scale) == 2.0**-3


@pytest.mark.parametrize("method", _METHODS.values(), ids=_METHODS)
def test_statistics_of_another_kind_are_refused(method: Method) -> None:
    plain = TensorStats.of(_ALL, histogram=True)
    other = dataclasses.replace(plain, custom="no histogram")

    for stats in (plain, other):
        with pytest.raises(CalibrationError, match=r"of 'act' lack the histogram.*collect them"):
            params_of(stats, _spec(method, power_of_two=isinstance(method, QuarkMinMse)), "act")


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_percentile_scales_16_bit_floats_as_well(symmetric: bool) -> None:
    method = QuarkPercentile(percentile=99.0, symmetric_range=symmetric)
    spec = FloatSpec(format=FloatFormat.BFLOAT16, scaled=True, method=method)

    low, high = range_of(_observed(method), spec, "t")

    if symmetric:
        expected = np.percentile(np.abs(_ALL), 99.0)
        assert (-low, high) == pytest.approx((expected, expected), rel=0.01)
    else:
        assert (low, high) == pytest.approx(np.percentile(_ALL, [0.5, 99.5]), rel=0.02)


@pytest.mark.parametrize("method", _METHODS.values(), ids=_METHODS)
def test_methods_survive_a_file(method: Method) -> None:
    assert decode_json(msgspec.json.encode(method), Method) == method
    config = QuantConfig(activation=_spec(method), weight=None)
    assert decode_json(msgspec.json.encode(config), QuantConfig) == config
