"""Samples from Python objects and folders of ``.npy`` files.

What can be read only once is kept on disk as it goes by, so it is consumed as lazily as the samples
are asked for, and a second pass gives the same samples.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lowbit.data.arrays import load_npy
from lowbit.data.dataset import IndexedSource, Source
from lowbit.data.inputs import InputInfo, Sample, conform, separated
from lowbit.errors import DataError, OutputError, did_you_mean
from lowbit.files import DAMAGED, TemporaryFolder


class FeedSpool:
    """Feeds by number, each array in a file of its own."""

    def __init__(self, inputs: Sequence[InputInfo]) -> None:
        """Take the inputs, in whose order the feeds are kept."""
        self._folder = TemporaryFolder()
        self._inputs = tuple(inputs)
        self._count = 0

    def __len__(self) -> int:
        """Return the number of feeds kept so far."""
        return self._count

    def append(self, feed: Sample) -> None:
        """Keep a feed that fits the inputs."""
        for position, info in enumerate(self._inputs):
            path = self._path(self._count, position)
            try:
                np.save(path, feed[info.name], allow_pickle=False)
            except OSError as error:
                raise OutputError(
                    f"cannot keep samples in {path.parent}: {error.strerror or error}; set TMPDIR "
                    "to a folder with more room"
                ) from error
        self._count += 1

    def load(self, index: int) -> dict[str, NDArray[Any]]:
        """Return a feed that was kept before."""
        return {
            info.name: self._array(index, position, info)
            for position, info in enumerate(self._inputs)
        }

    def _array(self, index: int, position: int, info: InputInfo) -> NDArray[Any]:
        with self._path(index, position).open("rb") as file:
            array = load_npy(file)
        # The .npy format forgets the types of ml_dtypes, so the type is put back.
        return array if info.is_text else array.view(info.dtype)

    def _path(self, index: int, position: int) -> Path:
        return self._folder.path / f"{index}-{position}.npy"


@runtime_checkable
class Reader(Protocol):
    """The interface of onnxruntime's CalibrationDataReader."""

    def get_next(self) -> object:
        """Return the next feed, or ``None`` after the last."""


@runtime_checkable
class RewindableReader(Reader, Protocol):
    """A reader that can start again."""

    def rewind(self) -> object:
        """Make ``get_next()`` start at the first feed."""


class SequenceSource(IndexedSource):
    """Feeds that are all in memory already."""

    def __init__(self, items: Sequence[object], limit: int | None) -> None:
        """Take the feeds as they are."""
        if not items:
            raise DataError(f"data is an empty {type(items).__name__}: give at least one sample")
        self._items = items
        self._count = len(items) if limit is None else min(len(items), limit)

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers."""
        return ((f"sample {index}", self._items[index]) for index in indices)

    def count(self) -> int:
        """Return the number of feeds."""
        return self._count

    def describe(self) -> str:
        """Return how many feeds from where."""
        return f"{self._count} samples from a {type(self._items).__name__}"


class RewindingSource(Source):
    """Feeds of a reader that is rewound before each pass; one pass at a time."""

    def __init__(self, reader: RewindableReader, limit: int | None) -> None:
        """Take a reader, in whatever state it is."""
        self._reader = reader
        self._limit = limit
        self._passes = 0

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the feeds from the first one on."""
        self._passes += 1
        this_pass = self._passes
        self._reader.rewind()
        index = -1
        for index, item in enumerate(islice(_read(self._reader), self._limit)):
            yield f"sample {index}", item
            if self._passes != this_pass:
                raise DataError(
                    f"{_kind(self._reader)} was rewound by another pass before this one was done: "
                    "finish a pass before the next, or give a reader without rewind()"
                )
        if index < 0:
            raise DataError(_empty_message(self._reader))

    def count(self) -> None:
        """Return nothing: the number is known only after reading."""

    def describe(self) -> str:
        """Return the kind of the reader."""
        return f"samples from {_kind(self._reader)}.get_next(), rewound for each pass"


class SpoolingSource(Source):
    """Feeds that can be read once, each kept on disk when it goes by."""

    def __init__(self, source: object, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Take anything that can be iterated; nothing is read yet."""
        self._kind = _kind(source)
        self._empty_message = _empty_message(source)
        each = (part for item in iterated(source) for part in separated(item, inputs))
        self._items = islice(each, limit)
        self._inputs = tuple(inputs)
        self._spool = FeedSpool(inputs)
        self._is_complete = False
        self._is_broken = False

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the feeds kept so far, then read on."""
        index = 0
        while (feed := self._feed(index)) is not None:
            yield f"sample {index}", feed
            index += 1
        if index == 0:
            raise DataError(self._empty_message)

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers, reading on as far as need be."""
        for index in indices:
            while len(self._spool) <= index and self._feed(len(self._spool)) is not None:
                pass
            yield f"sample {index}", self._spool.load(index)

    def count(self) -> int | None:
        """Return the number of feeds once all have been read."""
        return len(self._spool) if self._is_complete and len(self._spool) else None

    def describe(self) -> str:
        """Return how many feeds, if known, from what."""
        count = self.count()
        return (
            f"samples from {self._kind}" if count is None else f"{count} samples from {self._kind}"
        )

    def _feed(self, index: int) -> Sample | None:
        if index < len(self._spool):
            return self._spool.load(index)
        if self._is_complete:
            return None
        if self._is_broken:
            # Going on would silently skip the feed that failed.
            raise DataError(
                f"reading {self._kind} failed at sample {index} before, and it cannot be read "
                "again: make it anew"
            )
        self._is_broken = True
        feed = self._read_on(index)
        self._is_broken = False
        return feed

    def _read_on(self, index: int) -> Sample | None:
        for item in self._items:
            feed = conform(item, self._inputs, f"sample {index}")
            self._spool.append(feed)
            return feed
        self._is_complete = True
        # Lets go of what the iterator holds, which may be large.
        self._items = islice((), 0)
        return None


def can_iterate(source: object) -> bool:
    """Whether feeds can be read from an object."""
    is_dataset = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return isinstance(source, Reader) or hasattr(source, "__iter__") or is_dataset


def iterated(source: object) -> Iterator[object]:
    """Yield the items of a reader, an iterable or a dataset."""
    if isinstance(source, Reader):
        yield from _read(source)
    elif hasattr(source, "__iter__"):
        yield from source
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        # A dataset of torch need not raise IndexError at its end, so iter() might not stop.
        yield from (source[index] for index in range(len(source)))


def _read(reader: Reader) -> Iterator[object]:
    while (item := reader.get_next()) is not None:
        yield item


def _empty_message(source: object) -> str:
    if isinstance(source, Reader):
        return (
            f"get_next() of {_kind(source)} returned None at once: give a reader that has samples "
            "and has not been read yet"
        )
    return f"{_kind(source)} gave no sample: give at least one, and a generator not yet used up"


def _kind(source: object) -> str:
    return f"a Python {type(source).__name__}"


class NpyFolderSource(IndexedSource):
    """Files of the same name, one for each input, are one sample."""

    def __init__(self, folder: Path, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Find the files of every input and check that none lacks a partner."""
        self._folder = folder
        # Absolute, because workers have a working directory of their own.
        found = {info.name: _input_folder(folder, info, inputs) for info in inputs}
        _check_unknown_folders(folder, found)
        self._folders = {name: path.absolute() for name, path in found.items()}
        self.names = tuple(_sample_names(self._folders)[:limit])

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the samples of these numbers."""
        for name in (self.names[index] for index in indices):
            feed = {input_name: _load(path / name) for input_name, path in self._folders.items()}
            yield f"file {name} of {self._folder}", feed

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the files of these numbers."""
        part = copy.copy(self)
        part.names = tuple(self.names[index] for index in indices)
        return part

    def digest(self, index: int) -> bytes:
        """Return a hash of the bytes of a sample's files."""
        whole = hashlib.sha256()
        for path in self._folders.values():
            whole.update(hashlib.sha256(_bytes(path / self.names[index])).digest())
        return whole.digest()

    def count(self) -> int:
        """Return the number of samples."""
        return len(self.names)

    def describe(self) -> str:
        """Return how many samples from where."""
        return f"{len(self.names)} samples from .npy files in folder {self._folder}"


def _input_folder(folder: Path, info: InputInfo, inputs: Sequence[InputInfo]) -> Path:
    if len(inputs) == 1 and _npy_names(folder):
        return folder
    # No file system takes every character of a tensor name, so "a/b:0" may be kept as "a_b_0".
    for name in (info.name, re.sub(r"[^\w.-]", "_", info.name)):
        if name and (folder / name).is_dir():
            return folder / name
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    near = did_you_mean(info.name, found)
    listed = ", ".join(map(repr, found)) or "none"
    raise DataError(
        f"{folder} has no subfolder for input {info.name!r}{near} (its subfolders: {listed}); "
        "put its .npy files into a subfolder of its name"
    )


def _check_unknown_folders(folder: Path, known: dict[str, Path]) -> None:
    for path in sorted(folder.iterdir()):
        is_input = any(path == used or path in used.parents for used in known.values())
        if path.is_dir() and not is_input and _npy_names(path):
            raise DataError(
                f"subfolder {path.name!r} of {folder} is named after no input of the model"
                f"{did_you_mean(path.name, known)}; rename it, or take it away"
            )


def _sample_names(folders: dict[str, Path]) -> list[str]:
    files = {name: _npy_names(used) for name, used in folders.items()}
    every = set.union(*files.values())
    for input_name, names in files.items():
        missing = sorted(every - names)
        if missing:
            raise DataError(
                f"{folders[input_name]} has no file {missing[0]!r} for input {input_name!r}, but "
                "another input has: files of the same name are one sample"
            )
    if not every:
        searched = ", ".join(str(path) for path in folders.values())
        raise DataError(f"no .npy file in {searched}: save one file a sample there with numpy.save")
    return sorted(every)


def _npy_names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.npy") if not path.name.startswith(".")}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"file {path} cannot be read: {error.strerror or error}") from error


def _load(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            return load_npy(file)
    except DAMAGED as error:
        raise DataError(
            f"file {path} cannot be read ({error}): write it with numpy.save, as a plain array"
        ) from error
