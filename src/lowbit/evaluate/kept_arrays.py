"""Arrays of samples that wait to be run again or compared: in memory while they are small, in a file beyond."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from lowbit.files import TemporaryFolder
from lowbit.graph.session import Array
from lowbit.graph.store import Store


class ArrayKeeper:
    """A store in a temporary folder, which is removed with the last reference to it."""

    def __init__(self, room: int) -> None:
        """Begin; ``room`` bytes stay in memory."""
        self._folder = TemporaryFolder()
        self._store = Store(self._folder.path, room)
        self._numbers = itertools.count()  # threads ask at once

    def kept(self, arrays: Mapping[str, Array]) -> KeptArrays:
        """Copy arrays into the store; Python's objects, such as strings, have no bytes for a file."""
        if isinstance(arrays, KeptArrays):
            return arrays
        number, objects, size = next(self._numbers), dict[str, Array](), 0
        for name, value in arrays.items():
            array = np.asarray(value)
            size += array.nbytes
            if array.dtype.hasobject:
                objects[name] = np.array(array)
            else:
                self._store.put(number, name, array)
        return KeptArrays(self, number, tuple(arrays), objects, size)

    def get(self, number: int, name: str) -> Array:
        """Return an array."""
        return self._store.get(number, name)


class KeptArrays(Mapping[str, Array]):
    """Arrays by name, each read when it is asked for."""

    def __init__(
        self,
        keeper: ArrayKeeper,
        number: int,
        names: tuple[str, ...],
        objects: Mapping[str, Array],
        nbytes: int,
    ) -> None:
        """Take the number under which a keeper has them, those that it has not, and the size of all."""
        self._keeper, self._number, self._names, self._objects = keeper, number, names, objects
        self.nbytes = nbytes

    def __getitem__(self, name: str) -> Array:
        """Return an array."""
        if name not in self._names:
            raise KeyError(name)
        found = self._objects.get(name)
        return self._keeper.get(self._number, name) if found is None else found

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._names)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how another process makes it: with the arrays, as the file may be on another machine."""
        return dict, (dict(self),)
