"""Feeds from Python: lists, generators, datasets, and readers with ``get_next()``.

What can be read only once is kept on disk as it goes by, so it is consumed as lazily as the feeds
are asked for, and a second pass gives the same feeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol, runtime_checkable

from lowbit.data.conforming import conform
from lowbit.data.feeds import InputInfo, Sample
from lowbit.data.spool import FeedSpool
from lowbit.errors import DataError


@runtime_checkable
class Reader(Protocol):
    """What onnxruntime calls a CalibrationDataReader."""

    def get_next(self) -> object:
        """Return the next feed, or ``None`` after the last."""


@runtime_checkable
class RewindableReader(Reader, Protocol):
    """A reader that can start again."""

    def rewind(self) -> object:
        """Make ``get_next()`` start at the first feed."""


class SequenceSource:
    """Feeds that are all in memory already."""

    def __init__(self, items: Sequence[object], limit: int | None) -> None:
        """Take the feeds as they are."""
        if not items:
            raise DataError(f"data is an empty {type(items).__name__}: give at least one sample")
        self._items = items
        self._count = len(items) if limit is None else min(len(items), limit)

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the feeds in order."""
        for index, item in enumerate(islice(self._items, self._count)):
            yield f"sample {index}", item

    def count(self) -> int:
        """Return the number of feeds."""
        return self._count

    def describe(self) -> str:
        """Return how many feeds from where."""
        return f"{self._count} feeds from a {type(self._items).__name__}"


class RewindingSource:
    """Feeds of a reader that is rewound before each pass; one pass at a time."""

    def __init__(self, reader: RewindableReader, limit: int | None) -> None:
        """Take a reader, in whatever state it is."""
        self._reader = reader
        self._limit = limit
        self._passes = 0

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the feeds from the first one on."""
        self._passes += 1
        this_pass = self._passes
        self._reader.rewind()
        index = -1
        for index, item in enumerate(islice(_read(self._reader), self._limit)):
            yield f"sample {index}", item
            if self._passes != this_pass:
                raise DataError(
                    f"{_kind(self._reader)} was rewound by another pass before this one was done: "
                    "finish a pass before the next, or give a reader without rewind()"
                )
        if index < 0:
            raise DataError(_empty_message(self._reader))

    def count(self) -> None:
        """Return nothing: only reading tells."""

    def describe(self) -> str:
        """Return the kind of the reader."""
        return f"feeds from {_kind(self._reader)}.get_next(), rewound for each pass"


class SpoolingSource:
    """Feeds that can be read once, each kept on disk when it goes by."""

    def __init__(self, source: object, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Take anything that can be iterated; nothing is read yet."""
        self._kind = _kind(source)
        self._empty_message = _empty_message(source)
        self._items = islice(_iterate(source), limit)
        self._inputs = tuple(inputs)
        self._spool = FeedSpool(inputs)
        self._is_complete = False
        self._is_broken = False

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the feeds kept so far, then read on."""
        index = 0
        while (feed := self._feed(index)) is not None:
            yield f"sample {index}", feed
            index += 1
        if index == 0:
            raise DataError(self._empty_message)

    def count(self) -> int | None:
        """Return the number of feeds once all have been read."""
        return len(self._spool) if self._is_complete and len(self._spool) else None

    def describe(self) -> str:
        """Return how many feeds, if known, from what."""
        count = self.count()
        return f"feeds from {self._kind}" if count is None else f"{count} feeds from {self._kind}"

    def _feed(self, index: int) -> Sample | None:
        if index < len(self._spool):
            return self._spool.load(index)
        if self._is_complete:
            return None
        if self._is_broken:
            # Going on would silently leave out the feed that failed.
            raise DataError(
                f"reading {self._kind} failed at sample {index} before, and it cannot be read "
                "again: make it anew"
            )
        self._is_broken = True
        feed = self._read_on(index)
        self._is_broken = False
        return feed

    def _read_on(self, index: int) -> Sample | None:
        for item in self._items:
            feed = conform(item, self._inputs, f"sample {index}")
            self._spool.append(feed)
            return feed
        self._is_complete = True
        # Lets go of what the iterator holds, which may be large.
        self._items = islice((), 0)
        return None


def can_iterate(source: object) -> bool:
    """Whether feeds can be read from an object."""
    is_dataset = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    return isinstance(source, Reader) or hasattr(source, "__iter__") or is_dataset


def _iterate(source: object) -> Iterator[object]:
    if isinstance(source, Reader):
        yield from _read(source)
    elif hasattr(source, "__iter__"):
        yield from source
    elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        # A dataset of torch need not raise IndexError at its end, so iter() might not stop.
        yield from (source[index] for index in range(len(source)))


def _read(reader: Reader) -> Iterator[object]:
    while (item := reader.get_next()) is not None:
        yield item


def _empty_message(source: object) -> str:
    if isinstance(source, Reader):
        return (
            f"get_next() of {_kind(source)} returned None at once: give a reader that has samples "
            "and has not been read yet"
        )
    return f"{_kind(source)} gave no sample: give at least one, and a generator not yet used up"


def _kind(source: object) -> str:
    return f"a Python {type(source).__name__}"
