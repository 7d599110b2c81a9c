"""Arrays whose rows are samples: a ``.npz``, a ``.npy``, or an array in memory.

A big file is never read as a whole: members of a ``.npz`` are unpacked once, piece by piece, and
mapped into memory.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.dataset import IndexedSource, Renumbered, Source
from lowbit.data.inputs import InputInfo
from lowbit.data.sources import Spool
from lowbit.errors import DataError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Arrays by input name, and what they are called in messages.

    Attributes:
        arrays: One array an input, in the order of the inputs.
        origin: Where they come from.
        spool: Folder that must live as long as the arrays are used.
        file: The file they are of, and the inputs they are for.
    """

    arrays: Mapping[str, NDArray[Any]]
    origin: str
    spool: Spool | None = None
    file: tuple[Path, tuple[InputInfo, ...]] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Return how another process opens the file by itself; arrays of no file travel along."""
        if self.file is None:
            return _table, (dict(self.arrays), self.origin)
        return _reopened, (*self.file, self.origin)


def _table(arrays: Mapping[str, NDArray[Any]], origin: str) -> Table:
    return Table(arrays=arrays, origin=origin)


# A worker has many shards of one archive and unpacks it once.
@functools.lru_cache(maxsize=1)
def _reopened(path: Path, inputs: tuple[InputInfo, ...], origin: str) -> Table:
    read = read_npz if path.suffix.lower() == ".npz" else read_npy
    return dataclasses.replace(read(path, inputs), origin=origin)


def read_npz(path: Path, inputs: Sequence[InputInfo]) -> Table:
    """Return the arrays of a ``.npz`` that the inputs are named after; others are skipped."""
    spool = Spool()
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            _check_names(path, list(members), inputs)
            for position, info in enumerate(inputs):
                unpacked = spool.folder / f"{position}.npy"
                with archive.open(members[info.name]) as packed, unpacked.open("wb") as target:
                    shutil.copyfileobj(packed, target, length=1 << 20)
                arrays[info.name] = _map(unpacked, f"array {info.name!r} of {path}")
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path} is not a sound .npz ({error}): write it with numpy.savez"
        ) from error
    file = (path.absolute(), tuple(inputs))
    return Table(arrays=arrays, origin=str(path), spool=spool, file=file)


def read_npy(path: Path, inputs: Sequence[InputInfo]) -> Table:
    """Return the array of a ``.npy`` as the rows of the only input."""
    _check_single(str(path), inputs)
    arrays = {inputs[0].name: _map(path, str(path))}
    return Table(arrays=arrays, origin=str(path), file=(path.absolute(), tuple(inputs)))


def take_array(array: NDArray[Any], inputs: Sequence[InputInfo]) -> Table:
    """Return an array in memory as the rows of the only input."""
    _check_single("one array", inputs)
    return Table(arrays={inputs[0].name: array}, origin="an array")


class RowSource(IndexedSource):
    """Feeds made of the rows of one array an input."""

    def __init__(self, table: Table, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Take the arrays and find how many rows make a feed."""
        self._table = table
        self._is_whole = {info.name: _is_whole(table, info) for info in inputs}
        grouped = [info for info in inputs if not self._is_whole[info.name]]
        self._batch = _find_batch(grouped, table.origin)
        self._available = self._count_feeds()
        self._count = self._available if limit is None else min(self._available, limit)

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers; an incomplete last one is none."""
        for index in indices:
            first = index * self._batch
            label = (
                f"row {first}" if self._batch == 1 else f"rows {first} to {first + self._batch - 1}"
            )
            # Copied, so that a feed outlives the file and does not alias the caller's array.
            yield (
                f"{label} of {self._table.origin}",
                {
                    name: np.array(
                        array[index] if self._is_whole[name] else array[first:][: self._batch]
                    )
                    for name, array in self._table.arrays.items()
                },
            )

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the numbers of rows of a file; rows of no file travel along."""
        if self._table.file is None:
            return super().shard(indices)
        return Renumbered(self, tuple(indices))

    def count(self) -> int:
        """Return the number of feeds."""
        return self._count

    def describe(self) -> str:
        """Return how many rows from where."""
        rows = self._count * self._batch
        grouped = "" if self._batch == 1 else f", {self._batch} at a time"
        return f"{rows} samples from {self._table.origin}{grouped}"

    def _count_feeds(self) -> int:
        arrays = self._table.arrays
        rows = {name: len(array) for name, array in arrays.items()}
        feeds = {
            name: count if self._is_whole[name] else count // self._batch
            for name, count in rows.items()
        }
        grouped = {rows[name] for name in arrays if not self._is_whole[name]}
        if len(grouped) > 1 or len(set(feeds.values())) > 1:
            counts = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
            raise DataError(
                f"the arrays of {self._table.origin} differ in rows ({counts}): give each input "
                "one row a sample"
            )
        if min(feeds.values()) == 0:
            raise DataError(
                f"{self._table.origin} has {min(rows.values())} rows, but a feed needs "
                f"{self._batch}: give at least as many samples as the model fixes for the batch"
            )
        return min(feeds.values())


def _map(path: Path, what: str) -> NDArray[Any]:
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"{what} cannot be read ({error}): write it with numpy.save, as a plain array"
        ) from error
    if not isinstance(mapped, np.ndarray):
        mapped.close()
        raise DataError(f"{what} is a .npz by its content: name it so")
    return mapped


def _check_names(path: Path, found: list[str], inputs: Sequence[InputInfo]) -> None:
    for info in inputs:
        if info.name in found:
            continue
        near = did_you_mean(info.name, found)
        arrays = ", ".join(map(repr, found)) or "none"
        example = f"numpy.savez({path.name!r}, **{{{info.name!r}: ...}})"
        raise DataError(
            f"{path} has no array for input {info.name!r}{near} (its arrays: {arrays}); "
            f"name the arrays after the inputs: {example}"
        )


def _check_single(what: str, inputs: Sequence[InputInfo]) -> None:
    if len(inputs) != 1:
        names = ", ".join(repr(info.name) for info in inputs)
        raise DataError(
            f"{what} can feed a model of one input, this one has {len(inputs)} ({names}): give a "
            ".npz with one array for each"
        )


def _is_whole(table: Table, info: InputInfo) -> bool:
    """Whether each row is a complete feed of the input, batch axis included."""
    array = table.arrays[info.name]
    what = f"array for input {info.name!r} of {table.origin}"
    if array.ndim == 0:
        raise DataError(f"{what} is a single number: give one row a sample")
    if info.shape is None:
        return False
    rank = len(info.shape)
    if array.ndim not in (rank, rank + 1):
        raise DataError(
            f"{what} has shape {list(array.shape)}, but the input wants {info.shape_text}: give "
            f"{rank} dimensions, the first one counting samples"
        )
    return array.ndim == rank + 1


def _find_batch(grouped: Sequence[InputInfo], origin: str) -> int:
    fixed = {info.name: info.shape[0] for info in grouped if info.shape}
    sizes = {size for size in fixed.values() if isinstance(size, int)}
    if len(sizes) > 1:
        raise DataError(
            f"the inputs fix different batches ({fixed}), so the rows of {origin} cannot be "
            "grouped: give arrays with one more dimension, one complete feed a row"
        )
    return sizes.pop() if sizes else 1
