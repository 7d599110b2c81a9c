"""Images that are decoded once, however often the samples are gone through."""

from __future__ import annotations

import dataclasses
import io
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ROOM = 256 << 20
"""Bytes of the file at most: four hundred photographs of 224 x 224."""


class Images(Protocol):
    """Images by number."""

    def load(self, index: int) -> NDArray[Any]:
        """Return an image as the values of the input."""

    def digest(self, index: int) -> bytes | None:
        """Return a hash of what an image is made of, if that is cheaper than to make it."""

    def some(self, indices: Sequence[int]) -> Images | None:
        """Return the images of these numbers for another process; nothing if they must travel."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where in the file an image is."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class KeptImages:
    """Images that wait in a temporary file once they were made, as far as there is room.

    A run goes through its samples half a dozen times, and to decode and resize a photograph takes about as
    long as a small network does. The file has no name, so that none is left on the disk. Where it cannot be
    written, images are made each time.
    """

    def __init__(self, images: Images, room: int = ROOM) -> None:
        """Take images that are slow to make; at most ``room`` bytes of them are kept."""
        self._images, self._room = images, room
        self._places: dict[int, _Place] = {}
        self._end = 0
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()

    def load(self, index: int) -> NDArray[Any]:
        """Return an image as the values of the input."""
        place = self._places.get(index)
        kept = None if place is None else self._read(place)
        if kept is not None:
            return kept
        values = self._images.load(index)
        with self._lock:
            if index not in self._places and self._end + values.nbytes <= self._room:
                self._write(index, values)
        return values

    def digest(self, index: int) -> bytes | None:
        """Return a hash of what an image is made of, if that is cheaper than to make it."""
        return self._images.digest(index)

    def some(self, indices: Sequence[int]) -> Images | None:
        """Return the images of these numbers for another process, which keeps none."""
        return self._images.some(indices)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how another process makes it: without the file."""
        return KeptImages, (self._images, self._room)

    def _write(self, index: int, values: NDArray[Any]) -> None:
        try:
            if self._file is None:
                # Unbuffered: what a full disk did not take is not tried again when it is closed.
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.seek(self._end)
            is_kept = self._file.write(_bytes(values)) == values.nbytes
        except OSError:
            is_kept = False
        if not is_kept:
            self._room = 0
            return
        self._places[index] = _Place(self._end, values.dtype, values.shape)
        self._end += values.nbytes

    def _read(self, place: _Place) -> NDArray[Any] | None:
        values = np.empty(place.shape, place.dtype)
        with self._lock:
            if self._file is None:
                return None
            self._file.seek(place.start)
            is_whole = self._file.readinto(_bytes(values)) == values.nbytes
        return values if is_whole else None


def _bytes(values: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
