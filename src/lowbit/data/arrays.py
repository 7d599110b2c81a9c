"""Arrays whose rows are samples: a ``.npz``, a ``.npy``, or an array in memory.

A big file is never read as a whole: members of a ``.npz`` are unpacked once, piece by piece, and
mapped into memory. What their headers say is checked before, so that no archive unpacks to more than
the model can be fed with.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lowbit.data.dataset import IndexedSource, Renumbered, Source
from lowbit.data.inputs import InputInfo, transposition
from lowbit.data.remote import local_path
from lowbit.errors import DataError, OutputError, did_you_mean
from lowbit.files import DAMAGED, TemporaryFolder

_ATTEMPTS = 5

# Of several images: without an axis of channels, and with one.
_IMAGE_RANKS = (3, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Arrays by input name, and what they are called in messages.

    Attributes:
        arrays: One array an input, in the order of the inputs.
        origin: Where they come from.
        folder: Must live as long as the arrays are used.
        file: The file they are of, or its URL, and the inputs they are for.
    """

    arrays: Mapping[str, NDArray[Any]]
    origin: str
    folder: TemporaryFolder | None = None
    file: tuple[Path | str, tuple[InputInfo, ...], Mapping[str, Any]] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        """Return how another process opens the file by itself; arrays of no file travel along."""
        if self.file is None:
            return _table, (dict(self.arrays), self.origin)
        path, inputs, settings = self.file
        return _reopened, (path, inputs, self.origin, *settings.items())


def _table(arrays: Mapping[str, NDArray[Any]], origin: str) -> Table:
    return Table(arrays=arrays, origin=origin)


# A worker has many shards of one archive and unpacks it once.
@functools.lru_cache(maxsize=1)
def _reopened(
    name: Path | str, inputs: tuple[InputInfo, ...], origin: str, *settings: tuple[str, Any]
) -> Table:
    path = local_path(str(name))
    read: Callable[..., Table] = read_npz if path.suffix.lower() == ".npz" else read_npy
    return dataclasses.replace(read(path, inputs, **dict(settings)), origin=origin)


def read_npz(
    path: Path, inputs: Sequence[InputInfo], limit: int | None = None, *, images: bool = False
) -> Table:
    """Return the arrays of a ``.npz`` that the inputs are named after; others are skipped.

    Without such names their order decides, or the only array that could be fed. No more than ``limit`` feeds are unpacked, and nothing that does not fit the inputs, unless rows
    are ``images`` that will be made to fit.
    """
    folder = TemporaryFolder()
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = _find_members(archive, inputs, path, images=images)
            found = {name: _open_member(archive, member, path) for name, member in members.items()}
            rows = {i.name: _rows_needed(found[i.name], i, limit, images=images) for i in inputs}
            _check_room(path, folder.path, (found[name].nbytes(rows[name]) for name in found))
            for position, (name, member) in enumerate(found.items()):
                unpacked = folder.path / f"{position}.npy"
                member.unpack(unpacked, rows[name])
                arrays[name] = _map(unpacked, member.what)
    except DAMAGED as error:
        raise DataError(
            f"{path} is not a sound .npz ({error}): write it with numpy.savez"
        ) from error
    file = (path.absolute(), tuple(inputs), {"limit": limit, "images": images})
    return Table(arrays=arrays, origin=str(path), folder=folder, file=file)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """An array in an archive, of which only the header has been read."""

    what: str
    packed: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool

    def nbytes(self, rows: int) -> int:
        """Return the size of the first rows."""
        return rows * math.prod(self.shape[1:]) * self.dtype.itemsize

    def unpack(self, path: Path, rows: int) -> None:
        """Write the first rows as a ``.npy``."""
        header = {
            "descr": np.lib.format.dtype_to_descr(self.dtype),
            "fortran_order": self.is_fortran,
            "shape": (rows, *self.shape[1:]),
        }
        missing = self.nbytes(rows)
        try:
            with path.open("wb") as target:
                np.lib.format.write_array_header_2_0(target, header)
                while missing and (piece := self.packed.read(min(missing, 1 << 20))):
                    missing -= target.write(piece)
        except OSError as error:
            raise OutputError(
                f"cannot unpack {self.what} to {path.parent}: {error.strerror or error}; set "
                "TMPDIR to a folder with more room"
            ) from error
        if missing:
            raise EOFError(f"{self.what} ends {missing} bytes early")


def _find_members(
    archive: zipfile.ZipFile, inputs: Sequence[InputInfo], path: Path, *, images: bool
) -> dict[str, str]:
    """Return the file in the archive of each input."""
    members = {name.removesuffix(".npy"): name for name in archive.namelist()}
    names = [info.name for info in inputs]
    if all(name in members for name in names):
        return {name: members[name] for name in names}
    # So does numpy.savez call arrays that were given without names.
    if list(members) == [f"arr_{index}" for index in range(len(inputs))]:
        return dict(zip(names, members.values(), strict=True))
    fitting = [
        member
        for member in (members.values() if len(inputs) == 1 else ())
        if _could_feed(archive, member, path, inputs[0], images=images)
    ]
    if len(fitting) != 1:
        refuse_names(path, list(members), inputs)
    return {names[0]: fitting[0]}


def _could_feed(
    archive: zipfile.ZipFile, name: str, path: Path, info: InputInfo, *, images: bool
) -> bool:
    """Whether the rows of an array have the shape of an input, or that of images."""
    try:
        member = _open_member(archive, name, path)
        with member.packed:
            _rows_needed(member, info, None, images=images)
    except (DataError, ValueError):
        return False
    return info.shape is not None and (not images or len(member.shape) in _IMAGE_RANKS)


def _open_member(archive: zipfile.ZipFile, name: str, path: Path) -> _Member:
    what = f"array {name.removesuffix('.npy')!r} of {path}"
    packed = archive.open(name)
    version = np.lib.format.read_magic(packed)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(packed)
    if dtype.hasobject:
        raise DataError(
            f"{what} cannot be read (it holds Python objects): write it as a plain array"
        )
    if not shape:
        raise DataError(f"{what} is a single number: give one row a sample")
    return _Member(what=what, packed=packed, shape=shape, dtype=dtype, is_fortran=is_fortran)


def _rows_needed(member: _Member, info: InputInfo, limit: int | None, *, images: bool) -> int:
    """Return how many rows feeds are made of; raise if they do not fit the input."""
    is_whole = not images and _is_whole(member.shape, info, member.what)
    axes = () if images else (info.shape or ())[0 if is_whole else 1 :]
    for axis, (wanted, size) in enumerate(zip(axes, member.shape[1:], strict=False), start=1):
        if isinstance(wanted, int) and wanted != size:
            raise DataError(
                f"{member.what} has shape {list(member.shape)}, but the input wants "
                f"{info.shape_text}: axis {axis} is {size}, expected {wanted}"
                f"{transposition(member.shape[1:], axes)}"
            )
    if limit is None or member.is_fortran:
        return member.shape[0]
    batch = 1 if is_whole else _find_batch([info], member.what)
    return min(member.shape[0], limit * batch)


def _check_room(path: Path, folder: Path, sizes: Iterable[int]) -> None:
    needed, free = sum(sizes), shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"{path} unpacks to {needed / 1e9:.3g} GB, but {folder.parent} has {free / 1e9:.3g} GB "
            "left; give a --limit, or set TMPDIR to a folder with more room"
        )


def read_npy(path: Path, inputs: Sequence[InputInfo]) -> Table:
    """Return the array of a ``.npy`` as the rows of the only input."""
    _check_single(str(path), inputs)
    arrays = {inputs[0].name: _map(path, str(path))}
    return Table(arrays=arrays, origin=str(path), file=(path.absolute(), tuple(inputs), {}))


def at_url(table: Table, url: str) -> Table:
    """Return a table that other processes read from a URL by themselves."""
    if table.file is None:
        return table
    _, inputs, settings = table.file
    return dataclasses.replace(table, origin=url, file=(url, inputs, settings))


def take_array(array: NDArray[Any], inputs: Sequence[InputInfo]) -> Table:
    """Return an array in memory as the rows of the only input."""
    _check_single("one array", inputs)
    return Table(arrays={inputs[0].name: array}, origin="an array")


class RowSource(IndexedSource):
    """Feeds made of the rows of one array an input."""

    def __init__(self, table: Table, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Take the arrays and find how many rows make a feed."""
        self._table = table
        self._is_whole = {
            info.name: _is_whole(
                table.arrays[info.name].shape,
                info,
                f"array for input {info.name!r} of {table.origin}",
            )
            for info in inputs
        }
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
        samples = "sample" if rows == 1 else "samples"
        return f"{rows} {samples} from {self._table.origin}{grouped}"

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
                f"{self._table.origin} has {min(rows.values())} rows, but the model takes "
                f"{self._batch} at a time: give at least as many"
            )
        return min(feeds.values())


def load_npy(file: IO[bytes]) -> NDArray[Any]:
    """Read a ``.npy`` from the start of a file.

    NumPy has Python parse the header, and up to 3.11 that may fail while another thread parses too: tried again.
    """
    for _ in range(_ATTEMPTS - 1):
        with contextlib.suppress(SystemError):
            return np.lib.format.read_array(file, allow_pickle=False)
        file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _map(path: Path, what: str) -> NDArray[Any]:
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGED as error:
        raise DataError(
            f"{what} cannot be read ({error}): write it with numpy.save, as a plain array"
        ) from error
    if not isinstance(mapped, np.ndarray):
        mapped.close()
        raise DataError(f"{what} is a .npz by its content: name it so")
    return mapped


def refuse_names(path: Path, found: list[str], inputs: Sequence[InputInfo]) -> NoReturn:
    """Raise for a ``.npz`` that lacks the array of an input."""
    name = next(info.name for info in inputs if info.name not in found)
    arrays = ", ".join(map(repr, found)) or "none"
    raise DataError(
        f"{path} has no array for input {name!r}{did_you_mean(name, found)} (its arrays: {arrays}); "
        f"name the arrays after the inputs: numpy.savez({path.name!r}, **{{{name!r}: ...}})"
    )


def _check_single(what: str, inputs: Sequence[InputInfo]) -> None:
    if len(inputs) != 1:
        names = ", ".join(repr(info.name) for info in inputs)
        raise DataError(
            f"{what} can feed a model of one input, this one has {len(inputs)} ({names}): give a "
            ".npz with one array for each"
        )


def _is_whole(shape: tuple[int, ...], info: InputInfo, what: str) -> bool:
    """Whether each row is a complete feed of the input, batch axis included."""
    if not shape:
        raise DataError(f"{what} is a single number: give one row a sample")
    if info.shape is None:
        return False
    rank = len(info.shape)
    if len(shape) not in (rank, rank + 1):
        raise DataError(
            f"{what} has shape {list(shape)}, but the input wants {info.shape_text}: give "
            f"{rank} dimensions, the first one counting samples"
        )
    return len(shape) == rank + 1


def _find_batch(grouped: Sequence[InputInfo], origin: str) -> int:
    fixed = {info.name: info.shape[0] for info in grouped if info.shape}
    sizes = {size for size in fixed.values() if isinstance(size, int)}
    if len(sizes) > 1:
        raise DataError(
            f"the inputs fix different batches ({fixed}), so the rows of {origin} cannot be "
            "grouped: give arrays with one more dimension, all inputs of a sample in each row"
        )
    return sizes.pop() if sizes else 1
