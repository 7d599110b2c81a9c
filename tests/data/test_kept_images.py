"""Images that are decoded once: the same values again, within a bound, for any number of threads."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import pickle
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lowbit.data.kept_images import KeptImages


@dataclasses.dataclass
class _Images:
    """Images of different sizes and types that count how often each is made."""

    made: Counter[int] = dataclasses.field(default_factory=Counter)

    def load(self, index: int) -> NDArray[Any]:
        self.made[index] += 1
        dtype = np.float32 if index % 2 else np.uint8
        # Not contiguous, as what is transposed is not.
        return np.arange(6 * (index + 1)).reshape(2, 3, -1).transpose(2, 0, 1).astype(dtype)

    def digest(self, index: int) -> bytes | None:
        return bytes([index])

    def some(self, indices: Sequence[int]) -> _Images | None:
        return _Images(Counter(indices))


def _assert_same(found: NDArray[Any], want: NDArray[Any]) -> None:
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(found, want)


def test_each_image_is_made_once() -> None:
    images = _Images()
    kept = KeptImages(images)
    for _ in range(3):
        for index in (4, 0, 1, 3):
            _assert_same(kept.load(index), _Images().load(index))
    assert images.made == {0: 1, 1: 1, 3: 1, 4: 1}


def test_what_was_given_can_be_changed() -> None:
    kept = KeptImages(_Images())
    kept.load(1)[...] = -1
    kept.load(1)[...] = -1
    _assert_same(kept.load(1), _Images().load(1))


def test_images_beyond_the_bound_are_made_anew() -> None:
    images = _Images()
    kept = KeptImages(images, room=images.load(0).nbytes)
    images.made.clear()
    for _ in range(2):
        for index in (0, 1):
            _assert_same(kept.load(index), _Images().load(index))
    assert images.made == {0: 1, 1: 2}


def test_an_image_without_pixels_is_kept_too() -> None:
    empty = np.zeros((3, 0, 4), np.float32)
    images = _Images()
    images.load = lambda _: empty  # type: ignore[method-assign]
    kept = KeptImages(images)
    _assert_same(kept.load(0), empty)
    _assert_same(kept.load(0), empty)


def test_threads_get_what_they_asked_for() -> None:
    kept = KeptImages(_Images())
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: (i, kept.load(i)), [i % 7 for i in range(200)]))
    for index, values in found:
        _assert_same(values, _Images().load(index))


def test_where_no_file_can_be_written_images_are_made_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    images = _Images()
    kept = KeptImages(images)
    for _ in range(2):
        _assert_same(kept.load(3), _Images().load(3))
    assert images.made == {3: 2}


def test_another_process_gets_the_images_without_the_file() -> None:
    kept = KeptImages(_Images())
    kept.load(2)
    there = pickle.loads(pickle.dumps(kept))  # noqa: S301 - its own
    _assert_same(there.load(2), _Images().load(2))
    assert kept.some([5]) == _Images(Counter([5]))
    assert kept.digest(7) == bytes([7])
