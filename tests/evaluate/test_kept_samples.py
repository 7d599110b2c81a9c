"""Samples that are kept in a file where they are large."""

from __future__ import annotations

import gc
import pathlib
import pickle
import tempfile

import numpy as np
import pytest

from lowbit.evaluate.kept_samples import kept_samples
from lowbit.evaluate.runner import ReferenceSample


def _samples(count: int) -> list[ReferenceSample]:
    rng = np.random.default_rng(0)
    return [
        ReferenceSample(
            {"x": rng.normal(size=(1, 3, 4)).astype(np.float32), "n": np.array(i)},
            {"y": rng.normal(size=(2, 5)), "s": np.array(["a", str(i)], object), "e": np.zeros(0)},
        )
        for i in range(count)
    ]


@pytest.mark.parametrize("room", [0, 150, 1 << 20])
def test_samples_are_the_same_in_memory_and_in_a_file(room: int) -> None:
    samples = _samples(5)

    found = kept_samples(iter(samples), room)

    for one, other in zip(samples, found, strict=True):
        for want, got in ((one.feed, other.feed), (one.outputs, other.outputs)):
            assert list(want) == list(got)
            for name, array in want.items():
                np.testing.assert_array_equal(got[name], array)
                assert got[name].dtype == array.dtype
            assert "other" not in got


def test_the_file_goes_with_the_last_sample(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    samples = kept_samples(_samples(3), 0)
    last = samples.pop()
    del samples
    gc.collect()

    assert last.outputs["y"].shape == (2, 5)
    assert any(path.is_file() and path.stat().st_size for path in tmp_path.rglob("*"))
    del last
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_samples_in_a_file_are_read_when_they_are_asked_for() -> None:
    found = kept_samples(_samples(1), 0)[0].feed

    assert found["x"] is not found["x"]


def test_another_process_gets_the_arrays_themselves() -> None:
    feed = {"x": np.arange(6, dtype=np.float32), "text": np.array(["a"], object)}
    (kept,) = kept_samples([ReferenceSample(feed, {"y": np.ones(3)})], room=0)

    again = pickle.loads(pickle.dumps(kept))  # noqa: S301 - our own

    assert type(again.feed) is dict
    for name, array in feed.items():
        np.testing.assert_array_equal(again.feed[name], array)
    np.testing.assert_array_equal(again.outputs["y"], np.ones(3))
