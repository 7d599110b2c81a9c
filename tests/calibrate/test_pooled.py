"""What the graph pools of a feature map against the statistics of the whole map."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from helpers.map_models import map_model

from lowbit.calibrate import log_histogram
from lowbit.calibrate.collect import collect
from lowbit.calibrate.pooled import Pools, add_positions, add_rows, map_row_steps, rows_of
from lowbit.calibrate.subsampling import map_steps, row_step, subsampled, thinned
from lowbit.config.config import QuantConfig
from lowbit.config.methods import MinMax, MinMse
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.graph import pooling
from lowbit.graph.pooling import add_pools, highest_of, mean_of, poolable
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.numerics.formats import IntegerFormat
from lowbit.planning import Plan, make_plan
from lowbit.targets import find_target


def _plan(model: ir.Model, method: MinMax | MinMse) -> Plan:
    config = QuantConfig(
        activation=IntegerSpec(format=IntegerFormat.INT8, method=method),
        weight=IntegerSpec(format=IntegerFormat.INT8),
        bias=AccumulatorBias(),
        head="int8",
    )
    return make_plan(model, config, find_target("onnxruntime"))


def _feeds(batches: tuple[int, ...], size: int = 8) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.normal(size=(n, 3, size, 8)).astype(np.float32)} for n in batches]


def _relu_of(model: ir.Model, feeds: list[dict[str, np.ndarray]]) -> np.ndarray:
    with session(model, ["r"]) as running:
        return np.concatenate([running.run(["r"], feed)[0] for feed in feeds])


@pytest.mark.parametrize("batches", [(1, 1, 1), (2, 1, 3)])
def test_pooled_statistics_are_those_of_the_whole_map(batches: tuple[int, ...]) -> None:
    model, feeds = map_model(), _feeds(batches)

    found = collect(model, _plan(model, MinMax()), feeds)["r"]

    whole = _relu_of(model, feeds)
    assert (found.low, found.high) == (0.0, float(whole.max()))
    assert (found.count, found.not_finite) == (whole.size, 0)
    assert found.totals.positions == whole.size // 2
    np.testing.assert_allclose(found.channels, whole.mean(axis=(0, 2, 3)), rtol=1e-6)


def test_a_channel_with_a_value_that_is_not_finite_counts_as_not_finite() -> None:
    pools = Pools(
        np.array([[3.0, 5.0]], np.float32).reshape(1, 2, 1, 1),
        np.array([[1.0, np.nan]], np.float32).reshape(1, 2, 1, 1),
        positions=64,
    )

    stats = pools.stats(0.0)

    assert (stats.high, stats.count, stats.not_finite) == (3.0, 64, 64)


def test_a_map_without_a_finite_channel_has_no_range() -> None:
    nothing = np.full((1, 3, 1, 1), np.nan, np.float32)

    stats = Pools(nothing, nothing, positions=10).stats(0.0)

    assert (stats.low, stats.high, stats.count, stats.not_finite) == (0.0, 0.0, 0, 30)


def test_sums_and_size_are_those_of_what_was_pooled() -> None:
    x = np.random.default_rng(4).normal(size=(3, 2, 5, 4)).astype(np.float32)
    pools = Pools(
        x.max(axis=(2, 3), keepdims=True), x.mean(axis=(2, 3), keepdims=True), positions=20
    )

    total, squares, positions = pools.sums()

    np.testing.assert_allclose(total, x.sum(axis=(0, 2, 3)), rtol=1e-5)
    assert (squares, positions, pools.nbytes) == (None, 60, x.nbytes)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_do_not_reach_the_range(bad: float) -> None:
    model, feeds = map_model(), _feeds((1, 1))
    want = _relu_of(model, feeds[:1])
    feeds[1]["x"][0, :, 3, 3] = bad

    found = collect(model, _plan(model, MinMax()), feeds)["r"]

    assert np.isfinite(found.high)
    assert found.high >= want.max()
    assert found.not_finite > 0
    np.testing.assert_allclose(found.channels, want.mean(axis=(0, 2, 3)), rtol=1e-6)


def test_maps_whose_size_is_not_known_are_not_pooled() -> None:
    assert set(poolable(map_model().graph)) == {"c", "r", "y"}
    assert poolable(map_model("H").graph) == {}

    model, feeds = map_model("H"), [*_feeds((1,), 8), *_feeds((1,), 16)]
    found = collect(model, _plan(model, MinMax()), feeds)["r"]

    wholes = [_relu_of(model, [feed]) for feed in feeds]
    total = sum(w.sum(axis=(0, 2, 3)) for w in wholes)
    np.testing.assert_allclose(found.channels, total / (8 * 8 + 16 * 8), rtol=1e-6)


def test_a_method_that_reads_a_histogram_still_has_it() -> None:
    model, feeds = map_model(), _feeds((1, 1))

    assert collect(model, _plan(model, MinMse()), feeds)["r"].counts is not None


def test_the_pools_are_outputs_of_the_graph() -> None:
    model = map_model()

    add_pools(model.graph, {"r": 64})

    assert [value.name for value in model.graph.outputs] == ["y", highest_of("r"), mean_of("r")]


_LARGE = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[N,3,SIZE,SIZE] x) => (float[N,4,SIZE,SIZE] y)
<float[4,3,1,1] w = {1.0, -2.0, 3.0, 0.5, 0.25, -1.0, 1.0, -2.0, 3.0, 0.5, 0.25, -1.0},
 float[4] b = {0.5, -0.5, 0.0, 0.0},
 float[4,4,1,1] v = {1.0, -1.0, 0.5, 2.0, 1.0, -1.0, 0.5, 2.0, 1.0, -1.0, 0.5, 2.0, 1.0, -1.0, 0.5, 2.0},
 float[4] a = {0.1, -0.1, 0.0, 0.0}>
{
    c = Conv <kernel_shape = [1, 1]> (x, w, b)
    r = Relu (c)
    y = Conv <kernel_shape = [1, 1]> (r, v, a)
}
"""


@pytest.mark.parametrize("batch", [1, 2])
def test_the_histogram_of_a_large_map_is_that_of_some_positions(batch: int) -> None:
    model = normalize(ir.from_onnx_text(_LARGE.replace("SIZE", "70")))
    assert map_row_steps(model.graph)["r"] == row_step((1, 4, 70, 70)) == 2
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(size=(batch, 3, 70, 70)).astype(np.float32)} for _ in range(2)]

    found = collect(model, _plan(model, MinMse()), feeds)["r"]

    whole = _relu_of(model, feeds)
    assert map_steps((1, 4, 70, 70)) == (1, 2)
    expected, _ = log_histogram.count(whole[:, :, :, 1::2])
    assert (found.low, found.count) == (0.0, whole.size)
    assert found.high == pytest.approx(float(whole.max()), rel=1e-6)
    # onnxruntime's optimizations may move a value over the edge of a bin.
    assert np.abs(found.counts - expected).sum() < 1e-3 * expected.sum()
    np.testing.assert_allclose(found.channels, whole.mean(axis=(0, 2, 3)), rtol=1e-5)


def test_a_large_map_that_nothing_bounds_has_the_range_of_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, feeds = map_model(), _feeds((1, 2))
    monkeypatch.setattr(pooling, "_LARGE", 1)
    feeds[0]["x"][0, :, 2, 3] = -50.0

    found = collect(model, _plan(model, MinMax()), feeds)["y"]

    with session(model, ["y"]) as running:
        whole = np.concatenate([running.run(["y"], feed)[0] for feed in feeds])
    assert (found.low, found.high) == (float(whole.min()), float(whole.max()))
    assert (found.count, found.not_finite) == (whole.size, 0)


def _map(shape: tuple[int, ...]) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """Return a model that rectifies a map, and a sample."""
    x = ir.val("x", dtype=ir.DataType.FLOAT, shape=ir.Shape(shape))
    relu = ir.node("Relu", [x], name="r")
    (r,) = relu.outputs
    r.name, r.type, r.shape = "r", x.type, x.shape
    model = ir.Model(ir.Graph([x], [r], nodes=[relu], opset_imports={"": 17}), ir_version=8)
    return model, {"x": np.random.default_rng(0).normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("thin", [(), ("r",)])
@pytest.mark.parametrize("size", [(64, 30), (29, 31), (30, 32), (31, 33), (12, 96)])
def test_positions_are_the_same_where_channels_lie_in_blocks(
    size: tuple[int, int], thin: tuple[str, ...], *, in_blocks: bool
) -> None:
    model, feed = _map((2, 32, *size))
    add_positions(model.graph, ["r"], thin, in_blocks=in_blocks)

    with session(model, optimize="all") as running:
        (found,) = running.run([rows_of("r")], feed)

    whole = np.maximum(feed["x"], 0)
    np.testing.assert_array_equal(found, thinned(whole) if thin else subsampled(whole))
    assert found.size < whole.size


@pytest.mark.parametrize("step", [2, 7])
def test_every_so_many_rows_of_a_map_are_given(step: int) -> None:
    model, feed = _map((2, 4, 9, 5))
    add_rows(model.graph, {"r": step})

    with session(model) as running:
        (found,) = running.run([rows_of("r")], feed)

    np.testing.assert_array_equal(found, np.maximum(feed["x"], 0)[:, :, step // 2 :: step])
