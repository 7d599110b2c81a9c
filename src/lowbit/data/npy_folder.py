"""A folder of ``.npy`` files, each one sample; a subfolder an input when there are several."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.feeds import InputInfo
from lowbit.errors import DataError, did_you_mean


class NpyFolderSource:
    """Files of the same name, one for each input, are one sample."""

    def __init__(self, folder: Path, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Find the files of every input and check that none lacks a partner."""
        self._folder = folder
        self._folders = {info.name: _input_folder(folder, info, inputs) for info in inputs}
        _check_unknown_folders(folder, self._folders)
        self.names = tuple(_sample_names(self._folders)[:limit])

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield samples in the order of their file names."""
        for name in self.names:
            feed = {input_name: _load(path / name) for input_name, path in self._folders.items()}
            yield f"file {name} of {self._folder}", feed

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
        places = ", ".join(str(path) for path in folders.values())
        raise DataError(f"no .npy file in {places}: save one file a sample there with numpy.save")
    return sorted(every)


def _npy_names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.npy") if not path.name.startswith(".")}


def _load(path: Path) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"file {path} cannot be read ({error}): write it with numpy.save, as a plain array"
        ) from error
