"""Arrays that wait in memory or in a file."""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np
import pytest

from lowbit.evaluate.kept_arrays import ArrayKeeper


def _arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(1, 3, 4)).astype(np.float32),
        "words": np.array(["a", "bc"], object),
        "n": np.array(seed),
    }


@pytest.mark.parametrize("room", [0, 60, 1 << 20])
def test_arrays_come_back_as_they_were(room: int) -> None:
    keeper, given = ArrayKeeper(room), [_arrays(seed) for seed in range(3)]

    found = [keeper.kept(arrays) for arrays in given]

    for want, got in zip(given, found, strict=True):
        assert list(got) == list(want)
        assert len(got) == 3
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
            assert got[name].dtype == array.dtype
        with pytest.raises(KeyError):
            got["y"]


def test_what_is_kept_is_a_copy() -> None:
    arrays = _arrays(0)

    found = ArrayKeeper(1 << 20).kept(arrays)
    arrays["x"][:] = 0

    np.testing.assert_array_equal(found["x"], _arrays(0)["x"])


def test_what_is_kept_already_is_not_kept_twice() -> None:
    first = ArrayKeeper(1 << 20).kept(_arrays(0))

    assert ArrayKeeper(1 << 20).kept(first) is first


def test_no_more_than_the_room_stays_in_memory(tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    keeper = ArrayKeeper(3 * 48)

    found = [keeper.kept({"x": _arrays(seed)["x"]}) for seed in range(10)]

    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.stat().st_size >= 7 * 48  # of ten arrays of 48 bytes
    assert len(found) == 10
