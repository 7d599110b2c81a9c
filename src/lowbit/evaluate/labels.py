"""Labels of samples: by file, by folder, in order, or out of batches."""

from __future__ import annotations

import csv
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lowbit.data import Data
from lowbit.errors import DataError
from lowbit.files import DAMAGED

Label: TypeAlias = int | str
FOLDERS, BATCHES = "folders", "batches"
"""The word that asks for classes by folder."""

_FILE_COLUMNS = ("file", "filename", "image", "path", "name")


def read_labels(source: str, data: Data) -> list[Label]:
    """Return a label for each sample.

    ``source`` is a ``.csv`` with the columns ``file`` and ``label``; a ``.txt`` or ``.npy`` with
    one label per sample, in order; ``FILE.npz:NAME``, an array likewise; or ``folders``: images lie
    in one folder per class, and classes are numbered in the order of their names.
    """
    count = len(data)
    if source == FOLDERS:
        return _by_folder(data.names)
    if pathlib.Path(source).suffix.lower() == ".csv":
        return _by_name(source, data.names)
    labels = _listed(source)
    enough = len(labels) == count or (not data.names and len(labels) >= count)
    if not enough:
        raise DataError(
            f"{source} holds {len(labels)} labels, but the data {count} samples; give one for each, "
            "in the order of the data, or a .csv with the columns file and label"
        )
    return labels[:count]


def without_labels(batches: Iterable[Any], labels: list[Label]) -> Iterator[tuple[Any, ...]]:
    """Yield each row of batches ``(inputs ..., labels)`` by itself, without its label.

    Its label is added to ``labels`` before.
    """
    for number, batch in enumerate(batches):
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise DataError(
                f"batch {number} is a {type(batch).__name__}; with labels={BATCHES!r} each is a pair of "
                "inputs and labels, as a DataLoader gives"
            )
        *inputs, last = (np.asarray(part) for part in batch)
        for row, label in enumerate(last.reshape(-1).tolist()):
            labels.append(label)
            yield tuple(part[row : row + 1] for part in inputs)


def _by_folder(names: Sequence[str]) -> list[Label]:
    parents = [str(pathlib.PurePosixPath(name).parent) for name in names]
    classes = sorted(set(parents))
    if len(classes) < 2:
        raise DataError(
            "--labels folders expects images in one folder per class, and at least two of them"
        )
    return [classes.index(parent) for parent in parents]


def _by_name(source: str, names: Sequence[str]) -> list[Label]:
    known = _read_csv(source)
    if not names:
        raise DataError(
            f"{source} gives labels by file, but these samples have no names; give a .txt or .npy "
            "with one label per sample, in order"
        )
    by_last_part: dict[str, set[Label]] = {}
    for name, label in known.items():
        by_last_part.setdefault(pathlib.PurePosixPath(name).name, set()).add(label)
    found: list[Label] = []
    for name in names:
        same = by_last_part.get(pathlib.PurePosixPath(name).name, set())
        labels = {known[name]} if name in known else same
        if len(labels) > 1:
            raise DataError(
                f"{source} does not name {name}, but several files of that name in other folders, with "
                "different labels; name the files in it as in the data"
            )
        if not labels:
            raise DataError(
                f"{source} has no label for {name}; expected a row for each file of the data, found "
                f"{len(known)} of others, such as {next(iter(known), '')!r}"
            )
        found.extend(labels)
    return found


def _read_csv(source: str) -> Mapping[str, Label]:
    try:
        with pathlib.Path(source).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"cannot read the labels {source}: {error}") from error
    columns = list(rows[0]) if rows else []
    key = next((c for c in _FILE_COLUMNS if c in columns), None)
    if key is None or "label" not in columns:
        have = ", ".join(columns) or "nothing"
        raise DataError(
            f"{source} has the columns {have}; expected file and label, with commas between them"
        )
    return {row[key]: _label(row["label"] or "") for row in rows}


def _listed(source: str) -> list[Label]:
    path, _, name = source.partition(".npz:")
    file = pathlib.Path(f"{path}.npz" if name else source)
    try:
        if file.suffix == ".txt":
            return [_label(line) for line in file.read_text("utf-8").split()]
        if file.suffix == ".npy":
            return _integers(np.load(file, allow_pickle=False), source)
        if name:
            with np.load(file, allow_pickle=False) as arrays:
                if name not in arrays:
                    have = ", ".join(arrays.files)
                    raise DataError(f"{file} has no array {name!r} (it has {have})")
                return _integers(arrays[name], source)
    except DAMAGED as error:
        raise DataError(f"cannot read the labels {source}: {error}") from error
    raise DataError(
        f"labels {source} are of unknown kind; expected a .csv, .txt or .npy, FILE.npz:NAME, or "
        f"the word {FOLDERS}"
    )


def _integers(array: NDArray[Any], source: str) -> list[Label]:
    labels = array.reshape(-1)
    with np.errstate(invalid="ignore"):
        numbers = labels.astype(np.int64)
    if not np.array_equal(labels, numbers):
        raise DataError(
            f"labels {source} hold {labels.dtype} that are no integers; expected the number of a class for "
            "each sample"
        )
    return [int(label) for label in numbers]


def _label(text: str) -> Label:
    return int(text) if text.strip().lstrip("-").isdecimal() else text.strip()
