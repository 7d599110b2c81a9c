"""Samples that are run several times: in memory while they are small, in a file beyond that.

Some megabytes each, with what the float model gives for them, they would fill memory: more of them
validate where there are more to calibrate on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from lowbit.evaluate.runner import ReferenceSample
from lowbit.files import TemporaryFolder
from lowbit.graph.session import Array
from lowbit.graph.store import Store

_ROOM = 8 << 20


def kept_samples(samples: Iterable[ReferenceSample], room: int = _ROOM) -> list[ReferenceSample]:
    """Return the same samples, of which ``room`` bytes stay in memory."""
    keeper = _Keeper(room)
    return [ReferenceSample(keeper.kept(s.feed), keeper.kept(s.outputs)) for s in samples]


class _Keeper:
    """A store in a folder that goes with the last who has it."""

    def __init__(self, room: int) -> None:
        self._folder = TemporaryFolder()
        self._store = Store(self._folder.path, room)
        self._count = 0

    def kept(self, arrays: Mapping[str, Array]) -> _KeptArrays:
        """Move arrays into the store; Python's objects, such as strings, have no bytes for a file."""
        objects = {n: array for n, array in arrays.items() if np.asarray(array).dtype.hasobject}
        self._count += 1
        for name in arrays.keys() - objects.keys():
            self._store.put(self._count, name, np.asarray(arrays[name]))
        return _KeptArrays(self, self._count, tuple(arrays), objects)

    def get(self, number: int, name: str) -> Array:
        """Return an array."""
        return self._store.get(number, name)


class _KeptArrays(Mapping[str, Array]):
    """Arrays by name, each read when it is asked for."""

    def __init__(
        self,
        keeper: _Keeper,
        number: int,
        names: tuple[str, ...],
        objects: Mapping[str, Array],
    ) -> None:
        self._keeper, self._number, self._names, self._objects = keeper, number, names, objects

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        found = self._objects.get(name)
        return self._keeper.get(self._number, name) if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __reduce__(self) -> tuple[object, ...]:
        """Return how another process makes it: with the arrays, as the file may be on another machine."""
        return dict, (dict(self),)
