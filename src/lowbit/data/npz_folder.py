"""Samples from a folder of ``.npz`` files, each one a sample with an array for each input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lowbit.data.arrays import refuse_names
from lowbit.data.dataset import IndexedSource, Source
from lowbit.data.inputs import InputInfo, Sample
from lowbit.errors import DataError
from lowbit.files import DAMAGED


class NpzFolderSource(IndexedSource):
    """Files that hold a sample each, as ``lowbit infer`` writes them too."""

    def __init__(
        self, folder: Path, files: Sequence[Path], inputs: Sequence[InputInfo], limit: int | None
    ) -> None:
        """Take the files; nothing is read yet."""
        self._folder = folder
        # Absolute, because workers have a working directory of their own.
        self._files = tuple(path.absolute() for path in files)[:limit]
        self._inputs = tuple(inputs)

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the samples of these numbers."""
        for path in (self._files[index] for index in indices):
            yield f"file {path}", self._load(path)

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the files of these numbers."""
        files = [self._files[index] for index in indices]
        return NpzFolderSource(self._folder, files, self._inputs, None)

    def digest(self, index: int) -> bytes:
        """Return a hash of the bytes of a sample's file."""
        return hashlib.sha256(self._files[index].read_bytes()).digest()

    def count(self) -> int:
        """Return the number of samples."""
        return len(self._files)

    def describe(self) -> str:
        """Return how many samples from where."""
        return f"{len(self._files)} samples from .npz files in folder {self._folder}"

    def _load(self, path: Path) -> Sample:
        names = [info.name for info in self._inputs]
        try:
            with np.load(path, allow_pickle=False) as archive:
                # So does numpy.savez call arrays that were given without names.
                unnamed = archive.files == [f"arr_{index}" for index in range(len(names))]
                stored = archive.files if unnamed else names
                if not set(stored) <= set(archive.files):
                    refuse_names(path, archive.files, self._inputs)
                return {name: archive[own] for name, own in zip(names, stored, strict=True)}
        except DAMAGED as error:
            raise DataError(
                f"file {path} is not a sound .npz ({error}): write it with numpy.savez"
            ) from error
