"""Collecting: the statistics of all samples, whatever the threads, shards and memory."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx_ir as ir
import pytest
from helpers.small_models import small_cnn, small_feeds

from lowbit.calibrate import collect as collecting
from lowbit.calibrate.collect import collect
from lowbit.calibrate.statistics import TensorStats
from lowbit.config.config import QuantConfig
from lowbit.config.methods import Method, MinMax, MinMse, OutputMse
from lowbit.config.specs import AccumulatorBias, IntegerSpec, TensorOverride
from lowbit.errors import CalibrationError
from lowbit.graph import io
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import Plan, make_plan
from lowbit.quark.extension.methods import GrowingHistogram, QuarkPercentile
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
        bias=AccumulatorBias(),
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


def test_channel_means_of_what_has_a_bias_are_observed() -> None:
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


def test_histograms_of_quarks_methods_see_infinities_as_the_extremes() -> None:
    feeds = _feeds(2)
    feeds[1]["x"][0, 0, 0, 0] = np.inf
    feeds[1]["x"][0, 0, 0, 1] = np.nan

    stats = collect(_model(), _plan(QuarkPercentile()), feeds)

    growing = stats["x"].custom
    assert isinstance(growing, GrowingHistogram)
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


def test_progress_is_told_after_each_sample() -> None:
    told: list[int] = []

    collect(_model(), _plan(MinMax()), _feeds(5), progress=told.append)

    assert told == [1, 2, 3, 4, 5]


def test_no_samples_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="no samples"):
        collect(_model(), _plan(MinMax()), [])


def test_nothing_to_observe_runs_nothing() -> None:
    empty = Plan(preset="p", target="t", tensors=())

    assert collect(_model(), empty, iter([])).samples == 0


def test_the_bound_of_a_relu_stands_for_the_least_value_after_it() -> None:
    x = np.broadcast_to(np.array([4.0, 1.0, 1.0], np.float32).reshape(1, 3, 1, 1), (1, 3, 4, 4))

    stats = collect(_model(), _plan(MinMax()), [{"x": x.copy()}])

    # 4 - 2 + 3 + 0.5 and 2 + 0.25 - 1 - 0.5: the least value is 0.75.
    assert (stats["y"].low, stats["y"].high) == (0.0, 5.5)
    assert stats["x"].low == 1.0


def test_samples_without_room_for_two_give_the_same_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = _plan(QuarkPercentile(bins=64, symmetric_range=False))
    usual = collect(_model(), plan, _feeds(5))
    monkeypatch.setattr("lowbit.calibrate.collect._MEMORY_FOR_TENSORS", 1)

    alone = collect(_model(), plan, _feeds(5))

    for name in ("x", "y"):
        one, other = usual[name].custom, alone[name].custom
        assert isinstance(one, GrowingHistogram)
        assert isinstance(other, GrowingHistogram)
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.edges, other.edges)


def test_without_means_only_the_range_is_kept() -> None:
    stats = collect(_model(), _plan(MinMax()), _feeds(2), means=False)

    assert stats["x"].channels is None
    assert stats["x"].count == 2 * 48


def test_weights_chosen_by_the_output_observe_the_variances_of_their_input() -> None:
    feeds = _feeds(3)
    config = msgspec.structs.replace(
        _config(MinMax()), weight=IntegerSpec(format=IntegerFormat.INT8, method=OutputMse())
    )
    plan = make_plan(_model(), config, find_target("onnxruntime"))

    stats = collect(_model(), plan, feeds, means=False)

    everything = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    np.testing.assert_allclose(stats["x"].variances, everything.var(axis=(0, 2, 3)), rtol=1e-4)
    np.testing.assert_allclose(stats["x"].channels, everything.mean(axis=(0, 2, 3)), atol=1e-4)
    assert stats["y"].variances is None


def test_float_counterparts_of_inputs_are_observed_beside_them() -> None:
    """Bias correction compares the means of a tensor with those of its float counterpart."""
    stats = collect(_model(), _plan(MinMax()), _feeds(3), float_names={"x": "c"})

    with session(_model(), ["c"]) as running:
        c = np.concatenate([running.run(["c"], feed)[0] for feed in _feeds(3)])
    np.testing.assert_allclose(stats["c"].channels, c.mean(axis=(0, 2, 3)), rtol=1e-4, atol=1e-5)
    # The plan does not quantize it: the Conv and its Relu are one.
    assert "c" not in _plan(MinMax()).by_name()


def test_custom_statistics_and_pooled_maps_go_together() -> None:
    """One tensor's own method makes the run ordered; others are still observed as they ask."""
    own = IntegerSpec(format=IntegerFormat.INT8, method=QuarkPercentile(bins=16))
    plan = _plan(MinMax(), TensorOverride(tensor="x", spec=own))
    feeds = _feeds(4)

    stats = collect(_model(), plan, feeds)

    expected = GrowingHistogram.first(feeds[0]["x"], 16, "absolute")
    for feed in feeds[1:]:
        expected = expected.add(feed["x"])
    assert isinstance(stats["x"].custom, GrowingHistogram)
    np.testing.assert_array_equal(stats["x"].custom.counts, expected.counts)
    with session(_model()) as running:
        y = np.stack([running.run(["y"], feed)[0] for feed in feeds])
    assert (stats["y"].low, stats["y"].high, stats["y"].custom) == (0.0, y.max(), None)


@pytest.mark.parametrize(("room", "optimize"), [(1 << 30, "all"), (0, "plain")])
def test_large_samples_have_channels_in_blocks_unless_too_much_would_wait(
    room: int, optimize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = normalize(io.load(small_cnn(size=320)))
    used = []
    opened = collecting.session

    def noted(*args, **settings):
        used.append(settings["optimize"])
        return opened(*args, **settings)

    monkeypatch.setattr(collecting, "session", noted)
    monkeypatch.setattr(collecting, "_MEMORY_FOR_WAITING", room)

    plan = make_plan(model, _config(MinMse()), find_target("onnxruntime"))
    collect(model, plan, small_feeds(1, size=320), optimize="all")

    assert used == [optimize]
