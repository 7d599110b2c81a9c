"""Shards: every sample once, readable from their pickle, described where they can be."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.data import InputInfo, open_data
from lowbit.data.dataset import Data
from lowbit.data.shards import Selection

_INPUTS = [InputInfo("x", np.dtype(np.float32), (1, 64))]


def _arrays(count: int) -> list[np.ndarray]:
    return [np.full((1, 64), index + 1, np.float32) for index in range(count)]


def _values(data: Data) -> list[float]:
    return [float(sample["x"][0, 0]) for sample in data]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.data())
def test_shards_hold_every_sample_once_and_in_order(count, size, data) -> None:
    chosen = data.draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1).map(sorted))
    selection = Selection(open_data(_arrays(count), _INPUTS), chosen)

    shards = selection.shards(size)

    assert [index for shard in shards for index in shard.indices] == chosen
    assert all(len(shard.indices) == size for shard in list(shards)[:-1])
    assert [v for shard in shards for v in _values(shard.open())] == [i + 1 for i in chosen]


@pytest.fixture(params=["list", "array", "npz", "npy", "folder", "iterator", "random"])
def data(request, tmp_path: Path) -> Data:
    rows = np.concatenate(_arrays(12))
    match request.param:
        case "list":
            source: object = _arrays(12)
        case "array":
            source = rows
        case "iterator":
            source = iter(_arrays(12))
        case "random":
            source = "random"
        case "npz":
            np.savez(tmp_path / "d.npz", x=rows)
            source = tmp_path / "d.npz"
        case "npy":
            np.save(tmp_path / "d.npy", rows)
            source = tmp_path / "d.npy"
        case "folder":
            for index, row in enumerate(_arrays(12)):
                np.save(tmp_path / f"{index:02}.npy", row)
            source = tmp_path
    return open_data(source, _INPUTS, limit=12)


def test_a_shard_reads_the_same_elsewhere(data: Data) -> None:
    (shard,) = Selection(data, [3, 7]).shards(5)

    back = pickle.loads(pickle.dumps(shard))  # noqa: S301 - written in the same line
    read = back.open()
    samples = list(read.select([0, 1]))

    for sample, want in zip(samples, data.select([3, 7]), strict=True):
        np.testing.assert_array_equal(sample["x"], want["x"])
    notes = back.renumbered(read.notes)
    assert notes.digests == {i: data.notes.digests[i] for i in (3, 7)}
    assert "samples 3 to 7" in str(back)


@pytest.mark.parametrize("kind", ["npz", "npy", "folder", "random"])
def test_what_has_a_place_is_described_not_sent(tmp_path: Path, kind: str) -> None:
    many = np.ones((500, 64), np.float32)
    source: object = tmp_path / f"d.{kind}"
    if kind == "npz":
        np.savez(source, x=many)
    elif kind == "npy":
        np.save(source, many)
    elif kind == "folder":
        source = tmp_path
        for index in range(50):
            np.save(tmp_path / f"{index:02}.npy", many[:1])
    else:
        source = "random"
    data = open_data(source, _INPUTS, limit=50)

    shard = Selection(data, range(50)).shards(40)[0]

    assert len(pickle.dumps(shard)) < 2500


def test_what_others_noted_is_taken_over() -> None:
    data, other = (open_data(_arrays(5), _INPUTS) for _ in range(2))
    want = other.fingerprint()
    for shard in Selection(data, range(5)).shards(2):
        read = shard.open()
        list(read)
        data.add(shard.renumbered(read.notes))
    assert data.notes.digests == other.notes.digests
    assert data.fingerprint() == want


def test_some_samples_and_those_without_them_are_all_samples() -> None:
    every = Selection(open_data(_arrays(12), _INPUTS), range(1, 10))

    some = every.spread(4)
    rest = every.without(some)

    assert len(some) == 4
    assert sorted([*some.indices, *rest.indices]) == list(every.indices)
    assert list(every.without(every)) == []
