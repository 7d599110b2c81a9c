"""Samples in shards that many tools write: WebDataset's ``.tar`` files, and Parquet.

A record is described by where it is: a shard, and bytes or a row in it. Workers read their records by
themselves, and of a shard no more than these.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
import math
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lowbit.data.arrays import load_npy
from lowbit.data.dataset import IndexedSource, Source
from lowbit.data.inputs import InputInfo
from lowbit.data.remote import absolute, open_file
from lowbit.errors import DataError, did_you_mean
from lowbit.files import DAMAGED

SHARDS = (".tar", ".parquet")
_BROKEN: tuple[type[Exception], ...] = (tarfile.TarError, *DAMAGED)
Field = bytes | NDArray[Any]


class Record(Protocol):
    """One sample: what it is called, and its fields."""

    @property
    def name(self) -> str:
        """The name in messages, and in files of labels."""

    @property
    def fields(self) -> Sequence[str]:
        """The names of its fields."""

    def load(self, field: str) -> Field:
        """Return a field: bytes of a file, or an array."""


@dataclasses.dataclass(frozen=True, slots=True)
class TarRecord:
    """Files of one key in an archive that is not compressed, by offset and size."""

    shard: str
    name: str
    places: Mapping[str, tuple[int, int]]

    @property
    def fields(self) -> Sequence[str]:
        """The extensions of the files."""
        return tuple(self.places)

    def load(self, field: str) -> bytes:
        """Return the bytes of one file."""
        offset, size = self.places[field]
        with open_file(self.shard) as file:
            file.seek(offset)
            data: bytes = file.read(size)
        if len(data) != size:
            raise DataError(f"{self.shard} ends early: {self.name}.{field} is cut off")
        return data


def read_tar(shard: str) -> list[TarRecord]:
    """Return the records of a WebDataset shard: files that are named alike up to the first dot."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        with open_file(shard) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                folder, _, base = member.name.rpartition("/")
                key, dot, field = base.partition(".")
                if member.isfile() and key and dot:
                    name = f"{folder}/{key}" if folder else key
                    found.setdefault(name, {})[field.lower()] = (member.offset_data, member.size)
    except _BROKEN as error:
        raise DataError(
            f"{shard} is no .tar that can be read in parts ({error}): unpack it if it is compressed"
        ) from error
    return [TarRecord(shard, name, places) for name, places in found.items()]


@dataclasses.dataclass(frozen=True, slots=True)
class ParquetRecord:
    """A row of a Parquet file, by its row group."""

    shard: str
    group: int
    row: int
    fields: tuple[str, ...]
    number: int

    @property
    def name(self) -> str:
        """Its shard and its number there."""
        return f"{self.shard.rsplit('/', 1)[-1]}:{self.number}"

    def load(self, field: str) -> Field:
        """Return one column: bytes of an image, or numbers."""
        value = _row_group(self.shard, self.group, self.fields)[field][self.row].as_py()
        if isinstance(value, Mapping) and isinstance(value.get("bytes"), bytes):
            value = value["bytes"]  # how datasets of Hugging Face keep images
        return value if isinstance(value, bytes) else np.asarray(value)


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("Parquet needs pyarrow: pip install 'lowbit[parquet]'") from error
    return pyarrow.parquet


# Records of a group are read one after another.
@functools.lru_cache(maxsize=2)
def _row_group(shard: str, group: int, fields: tuple[str, ...]) -> Any:
    with open_file(shard) as file:
        return _parquet().ParquetFile(file).read_row_group(group, columns=list(fields))


def read_parquet(shard: str) -> list[ParquetRecord]:
    """Return the records of a Parquet file; only what describes it is read."""
    parquet = _parquet()
    try:
        with open_file(shard) as file:
            known = parquet.ParquetFile(file)
            fields = tuple(known.schema_arrow.names)
            sizes = [known.metadata.row_group(g).num_rows for g in range(known.num_row_groups)]
    except DAMAGED as error:
        raise DataError(f"{shard} is no Parquet file that can be read: {error}") from error
    starts = np.cumsum([0, *sizes])
    return [
        ParquetRecord(shard, group, row, fields, int(starts[group]) + row)
        for group, size in enumerate(sizes)
        for row in range(size)
    ]


def expand(names: Iterable[str]) -> list[str]:
    """Return names with WebDataset's ranges written out: ``shard-{000..002}.tar``."""
    found = []
    for name in names:
        match = re.search(r"\{(\d+)\.\.(\d+)\}", name)
        if match is None:
            found.append(absolute(name))
            continue
        width = len(match[1])
        for number in range(int(match[1]), int(match[2]) + 1):
            found += expand([f"{name[: match.start()]}{number:0{width}}{name[match.end() :]}"])
    return found


def read_records(names: Iterable[str]) -> list[Record]:
    """Return the records of all shards, in order."""
    found: list[Record] = []
    for name in expand(names):
        is_tar = name.partition("::")[0].lower().endswith(".tar")
        found += read_tar(name) if is_tar else read_parquet(name)
    if not found:
        raise DataError("the shards hold no sample: give at least one")
    return found


class RecordSource(IndexedSource):
    """Feeds of records that hold an array for each input."""

    def __init__(
        self,
        records: Sequence[Record],
        inputs: Sequence[InputInfo],
        origin: str,
        names: Sequence[str] | None = None,
    ) -> None:
        """Take records, of which the first says what fields there are."""
        self._records, self._origin = records, origin
        self._inputs = tuple(inputs)
        self._fields = {info.name: _field_of(info, inputs, records[0]) for info in inputs}
        self.names = tuple(r.name for r in records) if names is None else tuple(names)

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers."""
        for record in (self._records[index] for index in indices):
            label = f"record {record.name} of {self._origin}"
            yield label, {info.name: self._array(record, info, label) for info in self._inputs}

    def _array(self, record: Record, info: InputInfo, label: str) -> NDArray[Any]:
        field = self._fields[info.name]
        if field not in record.fields:
            raise DataError(f"{label} has no {field!r}, which others have")
        value = record.load(field)
        if isinstance(value, bytes):
            try:
                return load_npy(io.BytesIO(value))
            except DAMAGED as error:
                raise DataError(
                    f"{label}: {field!r} is no .npy that can be read: {error}"
                ) from error
        return _shaped(value, info)

    def shard(self, indices: Sequence[int]) -> Source:
        """Return where the records of these numbers are."""
        chosen = [self._records[index] for index in indices]
        return RecordSource(chosen, self._inputs, self._origin, [r.name for r in chosen])

    def digest(self, index: int) -> bytes | None:
        """Return a hash of the bytes of a record's fields; nothing where they are no bytes."""
        whole, record = hashlib.sha256(), self._records[index]
        for field in self._fields.values():
            value = record.load(field)
            if not isinstance(value, bytes):
                return None
            whole.update(hashlib.sha256(value).digest())
        return whole.digest()

    def count(self) -> int:
        """Return the number of records."""
        return len(self._records)

    def describe(self) -> str:
        """Return how many records from where."""
        return f"{len(self._records)} records from {self._origin}"


def _field_of(info: InputInfo, inputs: Sequence[InputInfo], record: Record) -> str:
    """Return the field that feeds an input: of its name, or the only array there is."""
    plain = re.sub(r"[^\w-]", "_", info.name)
    wanted = [info.name, f"{info.name}.npy", plain, f"{plain}.npy"]
    known = {field.lower(): field for field in record.fields}
    for name in wanted:
        if name.lower() in known:
            return known[name.lower()]
    if len(inputs) == 1 and "npy" in known:
        return known["npy"]
    raise DataError(
        f"record {record.name} has no field for input {info.name!r}"
        f"{did_you_mean(info.name, record.fields)} (its fields: {', '.join(record.fields)})"
    )


def _shaped(value: NDArray[Any], info: InputInfo) -> NDArray[Any]:
    """Return numbers of a column in the shape and kind of an input: lists are often flat."""
    if (value.dtype.kind == "f") == info.is_float and value.dtype.kind in "fiu":
        value = value.astype(info.dtype)
    sizes = info.shape or ()
    fixed = [size for size in sizes[1:] if isinstance(size, int)]
    is_flat = value.ndim == 1 and len(sizes) > 2 and len(fixed) == len(sizes) - 1
    return value.reshape(fixed) if is_flat and value.size == math.prod(fixed) else value
