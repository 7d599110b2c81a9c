"""Calibration data as a dataset: what an input wants, one sample, samples that are checked.

A sample that does not fit raises a ``DataError`` that names the sample and the input. Only two things
are put right silently: a missing batch dimension, and float32 for another float type. The first
full pass gives the number of samples and the fingerprint for free, and finds data that is all zero.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lowbit.data.inputs import InputInfo, Sample, conform
from lowbit.errors import DataError, visible


class Source(ABC):
    """Where feeds come from, before they are checked."""

    names: tuple[str, ...] = ()
    """The names of the samples, such as their files; nothing where they have none."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield what a feed is called in messages, and the feed as it came."""

    @abstractmethod
    def count(self) -> int | None:
        """Return the number of feeds, or ``None`` when it is known only after reading them."""

    @abstractmethod
    def describe(self) -> str:
        """Return where the feeds come from, for a report."""

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers, in ascending order."""
        wanted = set(indices)
        return (pair for index, pair in enumerate(self) if index in wanted)

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the feeds of these numbers as a source that another process can read.

        What nothing describes is read now, and travels along.
        """
        return Shipped(tuple(self.read(indices)))

    def digest(self, index: int) -> bytes | None:  # noqa: ARG002 - most have to make the feed
        """Return a hash of what a feed is made of, if that is cheaper than to make it."""
        return None


class IndexedSource(Source):
    """A source whose feeds can be read one by one, so that a few of many cost no more than these."""

    @abstractmethod
    def count(self) -> int:
        """Return the number of feeds."""

    @abstractmethod
    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers."""

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield all feeds in order."""
        return self.read(range(self.count()))


@dataclass(frozen=True, slots=True)
class Shipped(IndexedSource):
    """Feeds that travel with their source."""

    pairs: tuple[tuple[str, object], ...]

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers."""
        return (self.pairs[index] for index in indices)

    def count(self) -> int:
        """Return the number of feeds."""
        return len(self.pairs)

    def describe(self) -> str:
        """Return how many there are."""
        return f"{len(self.pairs)} samples"


@dataclass(frozen=True, slots=True)
class Renumbered(IndexedSource):
    """Some feeds of a source that another process can have as it is, numbered from 0."""

    source: Source
    indices: tuple[int, ...]

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers."""
        return self.source.read([self.indices[index] for index in indices])

    def count(self) -> int:
        """Return the number of feeds."""
        return len(self.indices)

    def describe(self) -> str:
        """Return how many feeds of what."""
        return f"{len(self.indices)} of {self.source.describe()}"


ZERO_FEEDS_TOLERATED = 16
"""The number of feeds at the start that may be all zero before the data is refused."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Notes on feeds from when they were read: a hash of each, and whether all are zero."""

    digests: Mapping[int, bytes]
    is_all_zero: bool


class Data:
    """Feeds that can be gone through any number of times, always the same, in flat memory.

    Each is checked against the inputs it is for. What is noted of it when it is first read gives the
    fingerprint, and finds data that is all zero.
    """

    def __init__(
        self,
        source: Source,
        inputs: Sequence[InputInfo],
        *,
        is_random: bool = False,
        refuses_zeros: bool = True,
    ) -> None:
        """Take a source.

        ``is_random``: no accuracy figure follows from its values. ``refuses_zeros``: whether feeds that
        are all zero are refused, which a part of a dataset cannot decide.
        """
        self._source = source
        self._inputs = tuple(inputs)
        self.is_random = is_random
        self._refuses_zeros = refuses_zeros
        self._count: int | None = None
        self._digests: dict[int, bytes] = {}
        # Token ids may well be 0; only data that has real numbers can be degenerate this way.
        self._is_all_zero = any(info.is_float for info in inputs)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the feeds."""
        index = -1
        for index, (label, raw) in enumerate(self._source):
            yield self._checked(index, label, raw)
        self._count = index + 1
        self._refuse_zeros()

    def select(self, indices: Sequence[int]) -> Iterator[Sample]:
        """Yield the feeds of these numbers, reading no others where the source can do so."""
        for index, (label, raw) in zip(indices, self._source.read(indices), strict=True):
            yield self._checked(index, label, raw)

    def __len__(self) -> int:
        """Return the number of feeds, reading all of them only when the source does not know it."""
        count = self._count if self._count is not None else self._source.count()
        if count is None:
            deque(self, maxlen=0)
            count = self._count
        return count or 0

    @property
    def inputs(self) -> tuple[InputInfo, ...]:
        """The model inputs that feeds are checked against."""
        return self._inputs

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the feeds of these numbers as a source that another process can read."""
        return self._source.shard(indices)

    @property
    def notes(self) -> Notes:
        """The notes on the feeds read so far."""
        return Notes(dict(self._digests), self._is_all_zero)

    def add(self, notes: Notes) -> None:
        """Take over what another process noted of feeds."""
        self._digests |= notes.digests
        self._is_all_zero &= notes.is_all_zero
        if len(self._digests) >= ZERO_FEEDS_TOLERATED:
            self._refuse_zeros()

    def digest(self, index: int) -> bytes:
        """Return a hash of one feed, or of what it is made of."""
        found = self._source.digest(index)
        if found is None:
            if index not in self._digests:
                deque(self.select([index]), maxlen=0)
            found = self._digests[index]
        return found

    @property
    def description(self) -> str:
        """Where the feeds come from and what was done to them."""
        return visible(self._source.describe())

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the source gives its samples, if any."""
        return self._source.names

    def fingerprint(self) -> str:
        """Return 16 hex digits that depend on every feed; reads those that have not been read yet."""
        missing = [index for index in range(len(self)) if index not in self._digests]
        if missing:
            deque(self.select(missing), maxlen=0)
        whole = hashlib.sha256()
        for _, digest in sorted(self._digests.items()):
            whole.update(digest)
        return whole.hexdigest()[:16]

    def _checked(self, index: int, label: str, raw: object) -> Sample:
        feed = conform(raw, self._inputs, label)
        if index not in self._digests:
            self._digests[index] = _digest(feed)
            if self._is_all_zero:
                self._is_all_zero = not any(array.any() for array in feed.values())
            if len(self._digests) == ZERO_FEEDS_TOLERATED:
                self._refuse_zeros()
        return feed

    def _refuse_zeros(self) -> None:
        if self._refuses_zeros and self._is_all_zero and self._digests:
            raise DataError(
                f"all values of {len(self._digests)} samples are 0 ({self.description}): nothing can "
                "be calibrated on that; give real samples"
            )


def _digest(feed: Sample) -> bytes:
    digest = hashlib.sha256()
    for name, array in feed.items():
        digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        # As bytes, because the types of ml_dtypes do not offer a buffer.
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
