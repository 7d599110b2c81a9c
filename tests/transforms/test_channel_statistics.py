"""Statistics of channels from one pass over the data."""

from __future__ import annotations

import weakref

import numpy as np
import onnx_ir as ir
from helpers.chains import chain, node

from lowbit.transforms.channel_statistics import channel_sizes, reduce_channels


def test_sizes_are_over_all_samples_and_positions() -> None:
    model = chain(node("Neg", "x", "a"), node("Relu", "a", "y"))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(5)]
    told = []

    found = channel_sizes(model, {"a": 1, "y": -1}, iter(feeds), told.append)

    everything = -np.concatenate([feed["x"] for feed in feeds])
    np.testing.assert_array_equal(found["a"].maximum, everything.max(axis=(0, 2, 3)))
    np.testing.assert_array_equal(found["a"].largest, np.abs(everything).max(axis=(0, 2, 3)))
    power = np.square(everything).mean(axis=(0, 2, 3))
    np.testing.assert_allclose(found["a"].power, power, rtol=1e-5)
    assert found["y"].maximum.shape == (8,)
    assert told == [1, 2, 3, 4, 5]


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
