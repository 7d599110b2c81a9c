"""A store of arrays between two steps of the loop: in memory while there is room, then in a file."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lowbit.errors import OutputError
from lowbit.files import temporary_folder
from lowbit.graph.session import Array

# The activations of all samples between two layers are hundreds of megabytes at the front of a
# network, and next to nothing at its end.
ROOM = 16 << 20


class Store:
    """Keeps arrays by sample and name; each sample is used by one thread at a time."""

    def __init__(self, folder: pathlib.Path, room: int = ROOM) -> None:
        """Keep at most ``room`` bytes in memory, all else in a file of ``folder``."""
        self._folder, self._room = folder, room
        self._arrays: dict[tuple[int, str], Array] = {}
        self._slots: dict[tuple[int, str], _Slot] = {}
        self._file = _SlotFile(folder / "arrays.bin")
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return how many arrays there are."""
        return len(self._arrays) + len(self._slots)

    def put(self, sample: int, name: str, array: Array) -> None:
        """Keep a copy of an array: one of onnxruntime's keeps all of its session's memory."""
        with self._lock:
            fits = array.nbytes <= self._room
            self._room -= array.nbytes if fits else 0
        if fits:
            self._arrays[sample, name] = np.array(array)
            return
        try:
            self._slots[sample, name] = self._file.write(np.ascontiguousarray(array))
        except OSError as error:
            raise OutputError(
                f"cannot keep activations in {self._folder}: {error.strerror or error}; give a "
                "cache_dir with more room, or set TMPDIR"
            ) from error

    def get(self, sample: int, name: str) -> Array:
        """Return an array."""
        found = self._arrays.get((sample, name))
        return self._file.read(self._slots[sample, name]) if found is None else found

    def mapped(self, sample: int, name: str) -> Array:
        """Return an array that, if it is in a file, is read as it is used, and only then in memory."""
        slot = self._slots.get((sample, name))
        if slot is None or 0 in slot.shape:
            return self.get(sample, name)
        return np.memmap(self._file.path, slot.dtype, "r", slot.start, slot.shape)

    def drop(self, sample: int, name: str) -> None:
        """Forget an array."""
        found = self._arrays.pop((sample, name), None)
        if found is None:
            self._file.free(self._slots.pop((sample, name)))
            return
        with self._lock:
            self._room += found.nbytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """Where in the file an array is, and of what kind: a header would take longer to read than most."""

    start: int
    size: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class _SlotFile:
    """A file of arrays whose places are used again.

    What is written over stays in the system's cache; a file for each array took five times as long.
    Sizes are rounded up to powers of two, so that arrays of other layers fit where others were.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._free: dict[int, list[int]] = collections.defaultdict(list)
        self._end = 0
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()

    def write(self, array: Array) -> _Slot:
        """Write an array into a free place."""
        size = 1 << max(array.nbytes - 1, 63).bit_length()
        with self._lock:
            start = self._free[size].pop() if self._free[size] else self._end
            self._end = max(self._end, start + size)
            file = self._opened()
        self._all(_write_at, file, array, start)
        return _Slot(start, size, array.dtype, array.shape)

    def read(self, slot: _Slot) -> Array:
        """Return the array of a place."""
        found = np.empty(slot.shape, slot.dtype)
        self._all(_read_at, self._opened(), found, slot.start)
        return found

    def _all(self, step: _Step, file: io.FileIO, array: Array, start: int) -> None:
        """Go over all bytes of an array, in as many steps as the system takes."""
        data = array.reshape(-1).view(np.uint8).data
        with self._lock if _WITH_POSITION else contextlib.nullcontext():
            while data:
                done = step(file, data, start)
                data, start = data[done:], start + done

    def free(self, slot: _Slot) -> None:
        """Free a place for reuse."""
        with self._lock:
            self._free[slot.size].append(slot.start)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._file = io.FileIO(self.path, "x+")
            weakref.finalize(self, self._file.close)
        return self._file


_Step = Callable[[io.FileIO, memoryview, int], int]

# Windows moves the one position of a file: threads take turns there.
_WITH_POSITION = not hasattr(os, "pwrite")


def _write_at(file: io.FileIO, data: memoryview, start: int) -> int:
    if not _WITH_POSITION:
        return os.pwrite(file.fileno(), data, start)
    file.seek(start)
    return file.write(data)


def _read_at(file: io.FileIO, data: memoryview, start: int) -> int:
    if not _WITH_POSITION:
        done = os.preadv(file.fileno(), [data], start)
    else:
        file.seek(start)
        done = file.readinto(data) or 0
    if not done:
        raise OSError(f"{file.name} ends before an array that was written to it")
    return done


@contextlib.contextmanager
def open_store(parent: str | os.PathLike[str] | None = None, room: int = ROOM) -> Iterator[Store]:
    """Yield a store in a new folder inside ``parent``, which is removed afterwards."""
    if parent is not None:
        pathlib.Path(parent).mkdir(parents=True, exist_ok=True)
    with temporary_folder(parent) as folder:
        store = Store(folder, room)
        try:
            yield store
        finally:
            store.close()
