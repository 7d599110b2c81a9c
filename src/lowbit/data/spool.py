"""Arrays parked on disk, so that data that can be read only once can be gone through again."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.feeds import InputInfo, Sample


class Spool:
    """A temporary folder that goes when its owner goes, at the latest with the program."""

    def __init__(self) -> None:
        """Make the folder."""
        self.folder = Path(tempfile.mkdtemp(prefix="lowbit-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)


class FeedSpool:
    """Feeds by number, each array in a file of its own."""

    def __init__(self, inputs: Sequence[InputInfo]) -> None:
        """Take the inputs, in whose order the feeds are kept."""
        self._inputs = tuple(inputs)
        self._spool = Spool()
        self._count = 0

    def __len__(self) -> int:
        """Return the number of feeds kept so far."""
        return self._count

    def append(self, feed: Sample) -> None:
        """Keep a feed that fits the inputs."""
        for position, info in enumerate(self._inputs):
            np.save(self._path(self._count, position), feed[info.name], allow_pickle=False)
        self._count += 1

    def load(self, index: int) -> dict[str, NDArray[Any]]:
        """Return a feed that was kept before."""
        # The .npy format forgets the types of ml_dtypes, so the type is put back.
        return {
            info.name: np.load(self._path(index, position)).view(info.dtype)
            for position, info in enumerate(self._inputs)
        }

    def _path(self, index: int, position: int) -> Path:
        return self._spool.folder / f"{index}-{position}.npy"
