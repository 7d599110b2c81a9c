"""Where values wait between two steps: in memory, or in files that are read one at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from lowbit.errors import OutputError
from lowbit.graph.session import Array


class Store(Protocol):
    """Keeps arrays by sample and name; each sample is used by one thread at a time."""

    def put(self, sample: int, name: str, array: Array) -> None:
        """Keep an array."""

    def get(self, sample: int, name: str) -> Array:
        """Return an array."""

    def drop(self, sample: int, name: str) -> None:
        """Forget an array."""


class MemoryStore:
    """Arrays in memory."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[int, str], Array] = {}

    def put(self, sample: int, name: str, array: Array) -> None:
        """Keep a copy of an array: one of onnxruntime's keeps all of its session's memory."""
        self._arrays[sample, name] = np.array(array)

    def get(self, sample: int, name: str) -> Array:
        """Return an array."""
        return self._arrays[sample, name]

    def drop(self, sample: int, name: str) -> None:
        """Forget an array."""
        del self._arrays[sample, name]


class DiskStore:
    """Arrays in files of one folder, of which nothing stays in memory."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def put(self, sample: int, name: str, array: Array) -> None:
        """Keep an array."""
        try:
            np.save(self._path(sample, name), array)
        except OSError as error:
            raise OutputError(
                f"cannot keep activations in {self._folder}: {error.strerror or error}; give a "
                "cache_dir with more room, or set TMPDIR"
            ) from error

    def get(self, sample: int, name: str) -> Array:
        """Return an array."""
        return np.load(self._path(sample, name), allow_pickle=False)  # type: ignore[no-any-return]

    def mapped(self, sample: int, name: str) -> Array:
        """Return an array that is read from its file as it is used, and only then in memory."""
        return np.load(self._path(sample, name), mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]

    def drop(self, sample: int, name: str) -> None:
        """Forget an array."""
        self._path(sample, name).unlink()

    def _path(self, sample: int, name: str) -> pathlib.Path:
        key = hashlib.sha256(name.encode()).hexdigest()[:24]
        return self._folder / f"{key}-{sample}.npy"


class SpillingStore:
    """Arrays in memory while there is room for them, then in files.

    The activations of all samples between two layers are hundreds of megabytes at the front of a
    network, and next to nothing behind it.
    """

    def __init__(self, disk: DiskStore, room: int = 16 << 20) -> None:
        """Keep at most ``room`` bytes in memory."""
        self._memory, self._disk, self._room = MemoryStore(), disk, room
        self._sizes: dict[tuple[int, str], int] = {}
        self._lock = threading.Lock()

    def put(self, sample: int, name: str, array: Array) -> None:
        """Keep an array."""
        with self._lock:
            fits = array.nbytes <= self._room
            if fits:
                self._room -= array.nbytes
                self._sizes[sample, name] = array.nbytes
        store: Store = self._memory if fits else self._disk
        store.put(sample, name, array)

    def get(self, sample: int, name: str) -> Array:
        """Return an array."""
        store: Store = self._memory if (sample, name) in self._sizes else self._disk
        return store.get(sample, name)

    def drop(self, sample: int, name: str) -> None:
        """Forget an array."""
        with self._lock:
            size = self._sizes.pop((sample, name), None)
            self._room += size or 0
        store: Store = self._disk if size is None else self._memory
        store.drop(sample, name)


@contextlib.contextmanager
def disk_store(parent: str | os.PathLike[str] | None) -> Iterator[DiskStore]:
    """Yield a store in a new folder inside ``parent``, which is removed afterwards."""
    if parent is not None:
        pathlib.Path(parent).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="lowbit-", dir=parent)
    try:
        yield DiskStore(pathlib.Path(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
