"""Arrays of samples that wait to be run again or compared: in memory while they are small, in a file beyond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lowbit.files import TemporaryFolder
from lowbit.graph.session import Array
from lowbit.graph.store import Store


class ArrayKeeper:
    """A store in a folder that goes with the last who has it."""

    def __init__(self, room: int) -> None:
        """Begin; ``room`` bytes stay in memory."""
        self._folder = TemporaryFolder()
        self._store = Store(self._folder.path, room)
        self._count = 0

    def kept(self, arrays: Mapping[str, Array]) -> KeptArrays:
        """Copy arrays into the store; Python's objects, such as strings, have no bytes for a file."""
        if isinstance(arrays, KeptArrays):
            return arrays
        objects = {n: array for n, array in arrays.items() if np.asarray(array).dtype.hasobject}
        self._count += 1
        for name in arrays.keys() - objects.keys():
            self._store.put(self._count, name, np.asarray(arrays[name]))
        return KeptArrays(self, self._count, tuple(arrays), objects)

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
    ) -> None:
        """Take the number under which a keeper has them, and those that it has not."""
        self._keeper, self._number, self._names, self._objects = keeper, number, names, objects

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
