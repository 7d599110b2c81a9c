"""Where arrays wait between two steps of the loop: in memory while there is room, then in files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import threading
from collections.abc import Iterator
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
        """Keep at most ``room`` bytes in memory, all else in files of ``folder``."""
        self._folder, self._room = folder, room
        self._arrays: dict[tuple[int, str], Array] = {}
        # Of those in files: a header in each would take longer to read than most of them.
        self._kinds: dict[tuple[int, str], tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def put(self, sample: int, name: str, array: Array) -> None:
        """Keep a copy of an array: one of onnxruntime's keeps all of its session's memory."""
        with self._lock:
            fits = array.nbytes <= self._room
            self._room -= array.nbytes if fits else 0
        if fits:
            self._arrays[sample, name] = np.array(array)
            return
        try:
            array.tofile(self._path(sample, name))
            self._kinds[sample, name] = array.dtype, array.shape
        except OSError as error:
            raise OutputError(
                f"cannot keep activations in {self._folder}: {error.strerror or error}; give a "
                "cache_dir with more room, or set TMPDIR"
            ) from error

    def get(self, sample: int, name: str) -> Array:
        """Return an array."""
        found = self._arrays.get((sample, name))
        if found is None:
            dtype, shape = self._kinds[sample, name]
            found = np.fromfile(self._path(sample, name), dtype).reshape(shape)
        return found

    def mapped(self, sample: int, name: str) -> Array:
        """Return an array that, if it is in a file, is read as it is used, and only then in memory."""
        dtype, shape = self._kinds.get((sample, name), (None, ()))
        if dtype is None or 0 in shape:
            return self.get(sample, name)
        return np.memmap(self._path(sample, name), dtype, mode="r", shape=shape)

    def drop(self, sample: int, name: str) -> None:
        """Forget an array."""
        found = self._arrays.pop((sample, name), None)
        if found is None:
            self._path(sample, name).unlink()
            del self._kinds[sample, name]
            return
        with self._lock:
            self._room += found.nbytes

    def _path(self, sample: int, name: str) -> pathlib.Path:
        key = hashlib.sha256(name.encode()).hexdigest()[:24]
        return self._folder / f"{key}-{sample}.bin"


@contextlib.contextmanager
def open_store(parent: str | os.PathLike[str] | None = None, room: int = ROOM) -> Iterator[Store]:
    """Yield a store in a new folder inside ``parent``, which is removed afterwards."""
    if parent is not None:
        pathlib.Path(parent).mkdir(parents=True, exist_ok=True)
    with temporary_folder(parent) as folder:
        yield Store(folder, room)
