"""Statistics of channels from one pass over the data."""

from __future__ import annotations

import weakref

import numpy as np
import onnx_ir as ir
import pytest
from helpers.chains import chain, node

from lowbit import parallel
from lowbit.data import open_data
from lowbit.data.shards import Selection
from lowbit.graph import parts, sharing
from lowbit.graph.session import model_inputs
from lowbit.transforms import channel_statistics
from lowbit.transforms.channel_statistics import channel_sizes, reduce_channels


def test_sizes_are_over_all_samples_and_positions() -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(5)]
    told = []

    found = channel_sizes(model, {"a": 1, "y": -1}, iter(feeds), told.append)

    everything = -np.concatenate([feed["x"] for feed in feeds])
    np.testing.assert_array_equal(found["a"].maximum, everything.max(axis=(0, 2, 3)))
    largest = np.abs(everything).max(axis=(2, 3)).astype(np.float64)
    reach = np.sqrt(largest.max(axis=0) * largest.mean(axis=0))
    np.testing.assert_array_equal(found["a"].largest, largest.max(axis=0))
    np.testing.assert_allclose(found["a"].reach, reach, rtol=1e-12)
    power = np.square(everything).mean(axis=(0, 2, 3))
    np.testing.assert_allclose(found["a"].power, power, rtol=1e-5)
    np.testing.assert_array_equal(found["y"].largest, np.maximum(everything, 0).max(axis=(0, 1, 2)))
    np.testing.assert_array_equal(found["y"].largest, found["y"].maximum)
    assert told == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_the_graph_takes_are_those_of_the_whole_map(batch: int, monkeypatch) -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "b"), node("Exp", "b", "y"))
    values = [model.graph.inputs[0], *(n.outputs[0] for n in model.graph)]
    for value in values:
        value.shape, value.dtype = ir.Shape([batch, 3, 8, 8]), ir.DataType.FLOAT
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(batch, 3, 8, 8)).astype(np.float32)} for _ in range(5)]
    wanted = {"a": 1, "b": 1, "y": 1}

    found = channel_sizes(model, wanted, feeds)
    monkeypatch.setattr(channel_statistics, "poolable", lambda _: {})
    whole = channel_sizes(model, wanted, feeds)

    for name, sizes in whole.items():
        for field in ("maximum", "largest", "reach"):
            np.testing.assert_array_equal(getattr(found[name], field), getattr(sizes, field))
        np.testing.assert_allclose(found[name].power, sizes.power, rtol=1e-5)


def test_of_many_large_samples_some_are_looked_at(monkeypatch) -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(9)]
    every = Selection(open_data(feeds, model_inputs(model)), range(9))
    monkeypatch.setattr(channel_statistics, "_LARGE_SAMPLES", 3)

    small = channel_sizes(model, {"a": 1}, every)["a"]
    monkeypatch.setattr(sharing, "_LARGE", 1)
    large = channel_sizes(model, {"a": 1}, every)["a"]

    x = -np.concatenate([feed["x"] for feed in feeds])
    np.testing.assert_array_equal(small.maximum, x.max(axis=(0, 2, 3)))
    np.testing.assert_array_equal(large.maximum, x[::3].max(axis=(0, 2, 3)))


def test_a_channel_with_what_is_not_a_number_has_no_size() -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "b"), node("Abs", "b", "y"))
    for each in model.graph:
        each.outputs[0].shape, each.outputs[0].dtype = ir.Shape([1, 3, 8, 8]), ir.DataType.FLOAT
    feeds = [{"x": np.full((1, 3, 8, 8), -2, np.float32)} for _ in range(3)]
    feeds[1]["x"][0, 1, 4, 5] = np.nan

    found = channel_sizes(model, {"y": 1}, feeds)["y"]

    np.testing.assert_array_equal(found.maximum, [2, np.nan, 2])
    np.testing.assert_array_equal(found.power, [4, np.nan, 4])


def test_no_data_gives_no_sizes() -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))

    assert channel_sizes(model, {"a": 1}, []) == {}


def test_arrays_of_several_tensors_are_reduced_and_joined() -> None:
    model = chain(node("Neg", "x", "a"), node("Abs", "a", "y"))
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(7)]

    def of(name: str, array: np.ndarray) -> np.ndarray:
        return np.array([array.sum(dtype=np.float64), name == "a"])

    found = reduce_channels(model, ["a", "y"], feeds, of, np.add)

    everything = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    np.testing.assert_allclose(found["a"], [-everything.sum(), 7], rtol=1e-6)
    np.testing.assert_allclose(found["y"], [np.abs(everything).sum(), 0], rtol=1e-6)


def test_no_array_is_kept() -> None:
    """Of each sample only what is reduced stays: the arrays are onnxruntime's."""
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))
    seen: list[weakref.ref[np.ndarray]] = []

    def of(_: str, array: np.ndarray) -> np.ndarray:
        seen.append(weakref.ref(array))
        return np.zeros(1)

    feeds = ({"x": np.zeros((1, 3, 8, 8), np.float32)} for _ in range(4))
    reduce_channels(model, ["a"], feeds, of, np.add)

    assert len(seen) == 4
    assert all(reference() is None for reference in seen)


def test_of_no_tensors_nothing_is_run() -> None:
    empty = ir.Model(ir.Graph([], [], nodes=[]), ir_version=8)

    # A sample that cannot be fed would raise if it were run.
    assert reduce_channels(empty, [], [{"x": np.zeros(1)}], max, max) == {}


def _peak_and_sum(_: str, array: np.ndarray) -> np.ndarray:
    return np.array([np.abs(array).max(), array.sum(dtype=np.float64)])


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.array([max(one[0], other[0]), one[1] + other[1]])


@pytest.mark.parametrize("join", [_joined, np.maximum])
@pytest.mark.xdist_group("workers")
@pytest.mark.usefixtures("worker_processes")
def test_workers_give_the_same_bits_for_any_size_of_shards(join, monkeypatch) -> None:
    """Sums of numbers of very different sizes show in which order they were added up."""
    model = chain(node("Neg", "x", "a"), node("Abs", "a", "y"))
    rng = np.random.default_rng(1)
    feeds = [
        {"x": (rng.normal(size=(1, 3, 8, 8)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)}
        for _ in range(11)
    ]
    data = open_data(feeds, model_inputs(model))
    told: list[int] = []

    def found(told=lambda _: None):
        every = Selection(data, range(11))
        return reduce_channels(model, ["a", "y"], every, _peak_and_sum, join, told)

    want = found()
    for size in (1, 4, 64):
        monkeypatch.setattr(channel_statistics, "_SHARD", size)
        with parallel.engine("loky", 2):
            got = found(told.append)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
        assert told[-1] == 11


def test_a_large_model_gives_the_same_in_parts(monkeypatch) -> None:
    model = chain(
        node("Neg", "x", "a"), node("Relu", "a", "b"), node("Exp", "b", "c"), node("Abs", "c", "y")
    )
    rng = np.random.default_rng(3)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(20)]
    wanted = {"a": 1, "c": 1, "y": 1}
    whole = channel_sizes(model, wanted, feeds)
    monkeypatch.setattr(parts, "LARGE_NODES", 3)
    monkeypatch.setattr(parts, "_PART_NODES", 2)
    told = []

    found = channel_sizes(model, wanted, iter(feeds), told.append)

    for name, sizes in whole.items():
        np.testing.assert_array_equal(found[name].maximum, sizes.maximum)
        np.testing.assert_array_equal(found[name].power, sizes.power)
    assert told == list(range(1, 21))
