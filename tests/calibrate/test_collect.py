from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.calibrate.collect import collect
from lowbit.calibrate.observers import Measure, Need, OrderedMeasure, need_of, thinned
from lowbit.calibrate.statistics import TensorStats, channel_sums
from lowbit.config.config import QuantConfig
from lowbit.config.methods import (
    BY_NAME,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    Percentile,
)
from lowbit.config.specs import IntegerSpec, ProductBias, TensorOverride
from lowbit.errors import CalibrationError
from lowbit.normalize.normalize import normalize
from lowbit.numerics.formats import IntegerFormat
from lowbit.parallel import ordered_map
from lowbit.planning import Plan, make_plan
from lowbit.scales.density import Density
from lowbit.scales.ranges import params_of
from lowbit.targets import find_target

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[1,3,4,4] x) => (float[1,2,4,4] y)
<float[2,3,1,1] w = {1.0, -2.0, 3.0, 0.5, 0.25, -1.0}, float[2] b = {0.5, -0.5}>
{
    c = Conv <kernel_shape = [1, 1]> (x, w, b)
    y = Relu (c)
}
"""


def _model() -> ir.Model:
    return normalize(ir.from_onnx_text(_MODEL))


def _config(method: Method, *overrides: TensorOverride) -> QuantConfig:
    return QuantConfig(
        activation=IntegerSpec(format=IntegerFormat.INT8, method=method),
        weight=IntegerSpec(format=IntegerFormat.INT8),
        bias=ProductBias(),
        head="int8",
        tensors=overrides,
    )


def _plan(method: Method, *overrides: TensorOverride) -> Plan:
    return make_plan(_model(), _config(method, *overrides), find_target("onnxruntime"))


def _feeds(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [
        {"x": (rng.normal(size=(1, 3, 4, 4)) * (k + 1)).astype(np.float32)} for k in range(count)
    ]


def test_ranges_are_those_of_all_samples() -> None:
    feeds = _feeds(9)

    stats = collect(_model(), _plan(MinMax()), feeds)

    everything = np.stack([feed["x"] for feed in feeds])
    assert stats.samples == 9
    assert (stats["x"].low, stats["x"].high) == (everything.min(), everything.max())
    assert stats["x"].counts is None


def test_the_histogram_is_that_of_all_samples_whatever_thread_was_first() -> None:
    feeds = _feeds(20)

    stats = collect(_model(), _plan(MinMse()), feeds)

    whole = TensorStats.of(np.stack([feed["x"] for feed in feeds]), histogram=True)
    np.testing.assert_array_equal(stats["x"].counts, whole.counts)


def test_collecting_in_shards_and_merging_equals_collecting_at_once() -> None:
    feeds, plan = _feeds(7), _plan(MinMse())

    parts = collect(_model(), plan, feeds[:3]) | collect(_model(), plan, feeds[3:])

    whole = collect(_model(), plan, feeds)
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(parts[name].counts, tensor.counts)
        assert (parts[name].low, parts[name].high) == (tensor.low, tensor.high)
    assert whole["x"].channels is not None
    np.testing.assert_allclose(parts["x"].channels, whole["x"].channels, rtol=1e-6)


def test_channel_means_of_what_has_a_bias_are_measured() -> None:
    feeds = _feeds(5)

    stats = collect(_model(), _plan(MinMax()), feeds)

    expected = np.concatenate([feed["x"] for feed in feeds]).mean(axis=(0, 2, 3))
    np.testing.assert_allclose(stats["x"].channels, expected, rtol=1e-4, atol=1e-6)


def test_the_mean_of_ranges_is_taken_over_samples() -> None:
    feeds = _feeds(4)

    stats = collect(_model(), _plan(MinMax(moving_average="mean")), feeds)

    expected = (np.mean([f["x"].min() for f in feeds]), np.mean([f["x"].max() for f in feeds]))
    assert stats["x"].average == pytest.approx(expected)


def test_a_moving_average_follows_the_samples_in_order() -> None:
    feeds = _feeds(4)

    stats = collect(_model(), _plan(MinMax(moving_average=0.25)), feeds)

    low, high = float(feeds[0]["x"].min()), float(feeds[0]["x"].max())
    for feed in feeds[1:]:
        low += 0.25 * (float(feed["x"].min()) - low)
        high += 0.25 * (float(feed["x"].max()) - high)
    assert stats["x"].average == pytest.approx((low, high))


def test_growing_histograms_see_infinities_as_the_extremes() -> None:
    feeds = _feeds(2)
    feeds[1]["x"][0, 0, 0, 0] = np.inf
    feeds[1]["x"][0, 0, 0, 1] = np.nan

    stats = collect(_model(), _plan(Percentile(histogram="growing", symmetric_range=True)), feeds)

    growing = stats["x"].growing
    assert growing is not None
    finite = feeds[1]["x"][np.isfinite(feeds[1]["x"])]
    assert growing.high == max(feeds[0]["x"].max(), finite.max())
    assert stats["x"].not_finite == 2


def test_everything_keeps_histograms_for_other_methods() -> None:
    stats = collect(_model(), _plan(MinMax()), _feeds(2), everything=True)

    assert all(tensor.counts is not None for tensor in stats.tensors.values())
    # Scales of weights chosen by the output's error read these.
    assert stats["x"].variances is not None


def test_fixed_ranges_need_no_statistics() -> None:
    override = TensorOverride(tensor="y", range=(0.0, 1.0))

    stats = collect(_model(), _plan(MinMax(), override), _feeds(1))

    assert "y" not in stats.tensors


def test_large_samples_are_thinned_alike_in_any_batch() -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 512, 512)).astype(np.float32)

    some = thinned(x)

    assert some.shape[:2] == x.shape[:2]
    assert 4 <= some.shape[2] < x.shape[2] // 2
    np.testing.assert_array_equal(some, np.concatenate([thinned(x[k : k + 1]) for k in range(3)]))
    small = x[:, :, :16, :16]
    assert thinned(small) is small


def test_thinning_leaves_the_range_and_the_shape_of_the_distribution() -> None:
    x = np.random.default_rng(0).normal(size=(1, 8, 256, 256)).astype(np.float32)
    x[0, 3, 100, 7] = 50.0
    measure = Measure({"t": Need(histogram=True)})

    measure.add("t", x)

    stats = measure.result()["t"]
    assert (stats.low, stats.high) == (x.min(), 50.0)
    quantiles = [Density.of(stats).quantile(f) for f in (0.01, 0.5, 0.9)]
    np.testing.assert_allclose(quantiles, np.quantile(x, (0.01, 0.5, 0.9)), atol=0.05)


def test_rows_without_a_finite_value_leave_the_range_to_decide() -> None:
    x = np.full((1, 8, 256, 256), np.nan, np.float32)
    x[0, 0, 0, 0] = 3.0  # the first row is never among those taken
    measure = Measure({"t": Need(histogram=True)})

    measure.add("t", x)

    stats = measure.result()["t"]
    spec = IntegerSpec(format=IntegerFormat.INT8, method=MinMse())
    assert (stats.high, stats.count) == (3.0, 1)
    assert float(params_of(stats, spec, "t").scale) == pytest.approx(3 / 127)


def test_empty_samples_of_ordered_methods_change_nothing() -> None:
    measure = OrderedMeasure({"t": Need(growing=(8, "signed"))})

    measure.add("t", np.zeros((0, 3), np.float32))
    measure.add("t", np.array([1.0, 2.0], np.float32))
    measure.add("t", np.zeros((0, 3), np.float32))

    assert measure.result()["t"].count == 2


def test_progress_is_told_after_each_sample() -> None:
    told: list[int] = []

    collect(_model(), _plan(MinMax()), _feeds(5), progress=told.append)

    assert told == [1, 2, 3, 4, 5]


def test_no_samples_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="no samples"):
        collect(_model(), _plan(MinMax()), [])


def test_nothing_to_measure_runs_nothing() -> None:
    empty = Plan(preset="p", target="t", tensors=())

    assert collect(_model(), empty, iter([])).samples == 0


@pytest.mark.parametrize("name", BY_NAME)
def test_every_method_says_what_it_needs(name: str) -> None:
    assert isinstance(need_of(BY_NAME[name]()), Need)


@pytest.mark.parametrize(
    ("method", "growing"),
    [
        (Percentile(histogram="growing", symmetric_range=True), (2048, "absolute")),
        (Percentile(histogram="growing", bins=64), (64, "symmetric")),
        (LayerwisePercentile(histogram="growing"), (2048, "absolute")),
        (Entropy(histogram="growing", bins=128), (128, "symmetric")),
        (MinMse(histogram="growing"), (2048, "signed")),
        (MinMse(), None),
    ],
)
def test_growing_methods_name_their_bins(method: Method, growing: tuple[int, str] | None) -> None:
    assert need_of(method).growing == growing


def test_needs_of_one_tensor_add_up() -> None:
    growing, average = Need(growing=(8, "signed")), Need(average=0.1, channel_axis=1)

    both = growing | average | Need(histogram=True)

    assert both == Need(histogram=True, growing=(8, "signed"), average=0.1, channel_axis=1)
    with pytest.raises(CalibrationError, match="two growing histograms"):
        _ = growing | Need(growing=(16, "signed"))


def test_at_most_as_many_feeds_are_read_ahead_as_threads() -> None:
    read = itertools.count()

    def feeds() -> Iterator[dict]:
        for _ in range(50):
            next(read)
            yield {}

    results = ordered_map(lambda _: 0, feeds(), 2)
    next(results)

    assert next(read) <= 4


def test_results_come_in_the_order_of_the_feeds() -> None:
    feeds = [{"n": np.array(k)} for k in range(30)]

    assert list(ordered_map(lambda feed: int(feed["n"]), iter(feeds), 3)) == list(range(30))


def test_samples_that_are_not_finite_do_not_spoil_the_means() -> None:
    measure = Measure({"t": Need(channel_axis=1)})
    measure.add("t", np.ones((1, 2, 3), np.float32))

    for fill in (np.inf, 1.0, np.nan):
        measure.add_channels("t", channel_sums(np.full((1, 2, 3), fill, np.float32), 1))

    means = measure.result()["t"].channels
    assert means is not None
    assert means.tolist() == [1.0, 1.0]


def test_the_bound_of_a_relu_stands_for_the_least_value_behind_it() -> None:
    x = np.broadcast_to(np.array([4.0, 1.0, 1.0], np.float32).reshape(1, 3, 1, 1), (1, 3, 4, 4))

    stats = collect(_model(), _plan(MinMax()), [{"x": x.copy()}])

    # 4 - 2 + 3 + 0.5 and 2 + 0.25 - 1 - 0.5: the least value is 0.75.
    assert (stats["y"].low, stats["y"].high) == (0.0, 5.5)
    assert stats["x"].low == 1.0


def test_samples_without_room_for_two_give_the_same_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = _plan(Percentile(histogram="growing", bins=64))
    usual = collect(_model(), plan, _feeds(5))
    monkeypatch.setattr("lowbit.calibrate.collect._MEMORY_FOR_TENSORS", 1)

    alone = collect(_model(), plan, _feeds(5))

    for name in ("x", "y"):
        one, other = usual[name].growing, alone[name].growing
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.edges, other.edges)
