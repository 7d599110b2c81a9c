"""Parts of a dataset that workers read by themselves.

A shard describes its samples: their files, the rows of an archive, a seed. Only what exists nowhere
else, such as a list in memory, travels with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from lowbit.data.dataset import Data, Notes, Source
from lowbit.data.inputs import InputInfo, Sample
from lowbit.numerics.spacing import evenly_spaced


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """Some samples: where they come from, and their numbers in the whole dataset."""

    source: Source
    inputs: tuple[InputInfo, ...]
    indices: tuple[int, ...]

    def __str__(self) -> str:
        first, last = self.indices[0], self.indices[-1]
        words = f"sample {first}" if first == last else f"samples {first} to {last}"
        names = self.source.names
        if not names:
            return words
        return f"{words} ({names[0] if first == last else f'{names[0]} to {names[-1]}'})"

    def open(self) -> Data:
        """Return the samples, numbered from 0."""
        return Data(self.source, self.inputs, refuses_zeros=False)

    def renumbered(self, notes: Notes) -> Notes:
        """Return what was noted of the samples under their numbers in the whole dataset."""
        digests = {self.indices[index]: digest for index, digest in notes.digests.items()}
        return dataclasses.replace(notes, digests=digests)


@dataclasses.dataclass(frozen=True, slots=True)
class Selection:
    """Samples of a dataset by their numbers; can be gone through any number of times."""

    data: Data
    indices: Sequence[int]

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples."""
        if len(self.indices) == len(self.data):
            return iter(self.data)
        return self.data.select(self.indices)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.indices)

    def spread(self, count: int) -> Selection:
        """Return ``count`` evenly spaced samples; all if there are no more."""
        total = len(self)
        if count >= total:
            return self
        return Selection(self.data, [self.indices[i] for i in evenly_spaced(total, count)])

    def without(self, other: Selection) -> Selection:
        """Return the samples that another selection of the same dataset does not have."""
        left = frozenset(other.indices)
        return Selection(self.data, [index for index in self.indices if index not in left])

    def shards(self, size: int) -> Shards:
        """Return the samples in parts of ``size``."""
        return Shards(self, size)


@dataclasses.dataclass(frozen=True, slots=True)
class Shards(Sequence[Shard]):
    """The parts of a selection, from ``first`` to before ``end``; each made when it is asked for."""

    selection: Selection
    size: int
    first: int = 0
    end: int | None = None

    def __len__(self) -> int:
        """Return how many parts there are."""
        whole = math.ceil(len(self.selection) / self.size)
        return max(0, min(whole, whole if self.end is None else self.end) - self.first)

    def __getitem__(self, index: int) -> Shard:  # type: ignore[override]
        """Return one part."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        data, start = self.selection.data, (self.first + index) * self.size
        indices = tuple(self.selection.indices[start : start + self.size])
        return Shard(data.shard(indices), data.inputs, indices)

    def part(self, first: int, end: int) -> Shards:
        """Return some of the parts."""
        return Shards(self.selection, self.size, self.first + first, self.first + end)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the parts themselves: the dataset as a whole stays where it is."""
        return tuple, (list(self),)
