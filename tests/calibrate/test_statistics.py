"""Statistics: any split gives those of the whole, and what is saved comes back."""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.calibrate.channels import ChannelAdder, channel_sums
from lowbit.calibrate.statistics import Stats, TensorStats, load_stats, save_stats
from lowbit.errors import CalibrationError

_CALM = settings(max_examples=60, deadline=None, derandomize=True)


def _assert_same(a: TensorStats, b: TensorStats) -> None:
    assert (a.low, a.high, a.count, a.not_finite) == (b.low, b.high, b.count, b.not_finite)
    np.testing.assert_array_equal(a.counts, b.counts)


@_CALM
@given(
    values=st.lists(st.floats(width=32), min_size=1, max_size=60),
    cuts=st.lists(st.integers(0, 60), max_size=5),
)
def test_any_split_gives_the_statistics_of_the_whole(values: list[float], cuts: list[int]) -> None:
    x = np.array(values, np.float32)
    parts = np.split(x, sorted(min(cut, len(x)) for cut in cuts))

    merged = TensorStats.of(parts[0], histogram=True)
    for part in parts[1:]:
        merged = merged | TensorStats.of(part, histogram=True)

    whole = TensorStats.of(x, histogram=True)
    if whole.count:
        _assert_same(merged, whole)
    assert merged.not_finite == whole.not_finite


def test_values_that_are_not_finite_are_counted_apart() -> None:
    stats = TensorStats.of(np.array([1, np.nan, -np.inf, 3, np.inf], np.float32), histogram=True)

    assert (stats.low, stats.high) == (1.0, 3.0)
    assert (stats.count, stats.not_finite) == (2, 3)
    assert stats.counts is not None
    assert stats.counts.sum() == 2


def test_a_tensor_of_nothing_finite_has_no_range() -> None:
    stats = TensorStats.of(np.full(4, np.nan, np.float32), histogram=True)

    assert (stats.count, stats.not_finite) == (0, 4)


def test_merging_with_an_empty_tensor_keeps_the_other() -> None:
    empty = TensorStats.of(np.zeros(0, np.float32), histogram=True)
    full = TensorStats.of(np.array([-1, 2], np.float32), histogram=True)

    _assert_same(empty | full, full)
    _assert_same(full | empty, full)


def channel_means(x: np.ndarray, axis: int) -> TensorStats:
    adder = ChannelAdder()
    adder.add({"t": channel_sums(x, axis, squares=True)})
    return TensorStats(0.0, 0.0, 0, totals=adder.totals()["t"])


@_CALM
@given(st.randoms(use_true_random=False))
def test_means_have_the_same_bits_however_samples_are_grouped(random) -> None:
    rng = np.random.default_rng(random.randrange(1000))
    scales = 10.0 ** rng.integers(-20, 19, size=9)
    parts = [channel_means((rng.normal(size=(1, 3, 5)) * s).astype(np.float32), 1) for s in scales]

    def merged(some: list[TensorStats]) -> TensorStats:
        return functools.reduce(lambda a, b: a | b, some)

    whole = merged(parts)
    random.shuffle(parts)
    cut = random.randrange(1, len(parts))
    grouped = merged(parts[:cut]) | merged(parts[cut:])
    np.testing.assert_array_equal(grouped.channels, whole.channels)
    np.testing.assert_array_equal(grouped.variances, whole.variances)


def test_pickled_statistics_come_back_and_are_small() -> None:
    x = np.random.default_rng(0).normal(size=(1, 3, 500)).astype(np.float32)
    stats = TensorStats.of(x, histogram=True).with_channels(channel_means(x, 1))

    data = pickle.dumps(stats)
    back = pickle.loads(data)  # noqa: S301 - written a line above

    _assert_same(back, stats)
    np.testing.assert_array_equal(back.channels, stats.channels)
    assert len(data) < stats.counts.nbytes / 8


def test_channel_means_add_up_over_samples_of_unlike_size() -> None:
    rng = np.random.default_rng(0)
    samples = [rng.normal(size=(1, 3, h, h)).astype(np.float32) for h in (2, 5, 7)]

    merged = channel_means(samples[0], 1)
    for sample in samples[1:]:
        merged = merged.with_channels(channel_means(sample, 1))

    flat = np.concatenate([s.transpose(1, 0, 2, 3).reshape(3, -1) for s in samples], axis=1)
    assert merged.channels is not None
    assert merged.variances is not None
    np.testing.assert_allclose(merged.channels, flat.mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged.variances, flat.var(axis=1), rtol=1e-4)


def test_means_survive_merging_with_a_tensor_without_values() -> None:
    means = channel_means(np.ones((1, 2, 3), np.float32), 1)
    full = TensorStats.of(np.array([5.0], np.float32), histogram=False)

    assert (means | full).channels is not None
    assert (full | means).channels is not None


class _Last:
    """Statistics of a method's own: the last sample."""

    def __init__(self, x: np.ndarray | None = None) -> None:
        self.x = x

    def add(self, x: np.ndarray) -> _Last:
        return _Last(x)


def test_what_depends_on_order_cannot_be_merged() -> None:
    plain = TensorStats.of(np.array([1, 2], np.float32), histogram=False)
    custom = dataclasses.replace(plain, custom=_Last())
    average = dataclasses.replace(plain, average=(0.0, 1.0))

    assert Stats({"t": plain}, 1).adds_up
    for ordered in (custom, average):
        assert not Stats({"s": plain, "t": ordered}, 1).adds_up
        for pair in ((plain, ordered), (ordered, plain)):
            with pytest.raises(CalibrationError, match="order of samples"):
                _ = pair[0] | pair[1]


def test_statistics_of_transformed_models_are_kept_apart() -> None:
    plain = Stats({}, 1)

    for other in (Stats({}, 1, equalized=True), Stats({}, 1, smoothed=True)):
        with pytest.raises(
            CalibrationError, match="different equalization, smoothing or rescaling"
        ):
            _ = plain | other
    both = Stats({}, 1, equalized=True) | Stats({}, 2, equalized=True)
    assert (both.samples, both.equalized, both.smoothed) == (3, True, False)


def test_a_known_floor_stands_for_the_least_value() -> None:
    x = np.array([0.5, 2.0], np.float32)

    stats = TensorStats.of(x, histogram=False, floor=0.0)

    assert (stats.low, stats.high, stats.count) == (0.0, 2.0, 2)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("squares", [False, True])
def test_channel_sums_are_numpys(axis: int, squares: bool) -> None:
    x = np.random.default_rng(8).normal(size=(3, 4, 5)).astype(np.float32)

    total, both, positions = channel_sums(x, axis, squares=squares)

    others = tuple(a for a in range(3) if a != axis % 3)
    np.testing.assert_allclose(total, x.sum(axis=others), rtol=1e-5, atol=1e-5)
    assert positions == x.size // x.shape[axis]
    if squares:
        np.testing.assert_allclose(both, np.square(x).sum(axis=others), rtol=1e-5)
    else:
        assert both is None


def test_statistics_of_two_shards_cover_the_tensors_of_both() -> None:
    a = TensorStats.of(np.array([1, 2], np.float32), histogram=True)
    b = TensorStats.of(np.array([-3], np.float32), histogram=True)

    both = Stats({"x": a, "y": a}, 2) | Stats({"x": b, "z": b}, 1)

    assert both.samples == 3
    assert set(both.tensors) == {"x", "y", "z"}
    assert (both["x"].low, both["x"].high, both["x"].count) == (-3.0, 2.0, 3)


def test_missing_statistics_are_named() -> None:
    with pytest.raises(CalibrationError, match="no statistics of tensor 'q'"):
        Stats({})["q"]


def test_saved_statistics_come_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(1, 3, 5)).astype(np.float32)
    stats = Stats(
        {
            "with/slash:0": TensorStats.of(x, histogram=True).with_channels(channel_means(x, 1)),
            "range only": TensorStats.of(x * 3, histogram=False),
            "broken": TensorStats.of(np.array([np.nan, 1], np.float32), histogram=True),
        },
        7,
        equalized=True,
    )

    save_stats(stats, tmp_path / "stats.npz")
    back = load_stats(tmp_path / "stats.npz")

    assert (back.samples, back.equalized, back.smoothed) == (7, True, False)
    assert list(back.tensors) == list(stats.tensors)
    for name, tensor in stats.tensors.items():
        if tensor.counts is None:
            assert back[name].counts is None
            assert (back[name].low, back[name].high) == (tensor.low, tensor.high)
        else:
            _assert_same(back[name], tensor)
    for field in ("channels", "variances"):
        kept, saved = (getattr(s["with/slash:0"], field) for s in (back, stats))
        np.testing.assert_array_equal(kept, saved)


@pytest.mark.parametrize("more", [{"average": (0.0, 1.0)}, {"custom": _Last()}])
def test_order_dependent_statistics_are_not_saved(tmp_path: Path, more: dict) -> None:
    tensor = TensorStats(0.0, 1.0, 1, **more)

    with pytest.raises(CalibrationError, match="built-in methods"):
        save_stats(Stats({"x": tensor}), tmp_path / "stats.npz")


@pytest.mark.parametrize("content", [None, b"", b"no archive", b"PK\x03\x04 cut off"])
def test_files_that_are_no_statistics_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "stats.npz"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(CalibrationError, match=r"stats\.npz"):
        load_stats(path)


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "stats.npz", x=np.ones(3))

    with pytest.raises(CalibrationError, match=r"stats\.npz holds no statistics"):
        load_stats(tmp_path / "stats.npz")


def test_statistics_of_another_format_are_refused(tmp_path: Path) -> None:
    header = np.array('{"format": 99, "samples": 1, "tensors": []}')
    np.savez(tmp_path / "stats.npz", header=header)

    with pytest.raises(CalibrationError, match="another version"):
        load_stats(tmp_path / "stats.npz")


@pytest.mark.parametrize(
    ("header", "arrays", "words"),
    [
        ({"low": 2.0}, {}, "a range of 2.0 to 1.0"),
        ({"low": "a"}, {}, "Expected `float`"),
        ({"count": -1}, {}, ">= 0"),
        ({}, {"0_at": np.int64([10**9])}, "out of bounds"),
        ({}, {"0_at": np.int64([-1])}, "holds no counts"),
        ({}, {"0_n": np.float64([0.5])}, "holds no counts"),
        ({"positions": 3}, {"0_sums": np.float64([np.nan])}, "have no sums"),
        ({"positions": 3}, {"0_sums": np.zeros((2, 3), np.int64)}, "have no sums"),
        ({"positions": 3}, {}, "0_sums"),
    ],
)
def test_edited_statistics_are_refused(tmp_path: Path, header, arrays, words) -> None:
    row = {"name": "x", "low": 0.0, "high": 1.0, "count": 1, "not_finite": 0}
    row |= {"histogram": True, "positions": 0}
    about = {"format": 4, "samples": 1, "equalized": False, "smoothed": False}
    text = json.dumps({**about, "tensors": [row | header]})
    found = {"header": np.array(text), "0_at": np.int64([5]), "0_n": np.int64([1])}
    np.savez(tmp_path / "stats.npz", **(found | arrays))

    with pytest.raises(CalibrationError, match=words):
        load_stats(tmp_path / "stats.npz")
