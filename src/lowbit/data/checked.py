"""Any source as ``Data``: each feed is made to fit, the first full pass is added up.

That pass gives the number of feeds and the fingerprint for free, and finds data that is all zero.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lowbit.data.conforming import conform
from lowbit.data.feeds import Data, InputInfo, Sample, Source
from lowbit.errors import DataError

ZERO_FEEDS_TOLERATED = 16
"""So many feeds may be all zero at the start before the data is refused."""


class CheckedData(Data):
    """The feeds of a source, checked against the inputs they are for."""

    def __init__(
        self, source: Source, inputs: Sequence[InputInfo], *, is_random: bool = False
    ) -> None:
        self._source = source
        self._inputs = tuple(inputs)
        self._is_random = is_random
        self._total: _Total | None = None

    def __iter__(self) -> Iterator[Sample]:
        """Yield the feeds; the first full pass also adds up the total."""
        if self._total is not None:
            for label, raw in self._source:
                yield conform(raw, self._inputs, label)
            return
        tally = _Tally(self._inputs)
        yield from self._add_up(tally)
        self._total = tally.total()

    def __len__(self) -> int:
        """Return the number of feeds, reading all of them only when the source cannot tell."""
        count = self._source.count()
        return self._read_total().count if count is None else count

    @property
    def description(self) -> str:
        """Where the feeds come from and what was done to them."""
        return self._source.describe()

    @property
    def names(self) -> tuple[str, ...]:
        """What the source calls its samples, if anything."""
        return tuple(getattr(self._source, "names", ()))

    @property
    def is_random(self) -> bool:
        """Whether the values are made up."""
        return self._is_random

    def fingerprint(self) -> str:
        """Return 16 hex digits over all feeds; costs a pass unless there has been one."""
        return self._read_total().fingerprint

    def _read_total(self) -> _Total:
        if self._total is None:
            tally = _Tally(self._inputs)
            deque(self._add_up(tally), maxlen=0)
            self._total = tally.total()
        return self._total

    def _add_up(self, tally: _Tally) -> Iterator[Sample]:
        for label, raw in self._source:
            feed = conform(raw, self._inputs, label)
            tally.add(feed)
            if tally.count == ZERO_FEEDS_TOLERATED:
                tally.refuse_zeros(self.description)
            yield feed
        tally.refuse_zeros(self.description)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Total:
    count: int
    fingerprint: str


class _Tally:
    """What the feeds of one pass add up to."""

    def __init__(self, inputs: Sequence[InputInfo]) -> None:
        self.count = 0
        self._digest = hashlib.sha256()
        # Token ids may well be 0; only data that has real numbers can be degenerate this way.
        self._is_all_zero = any(info.is_float for info in inputs)

    def add(self, feed: Sample) -> None:
        self.count += 1
        for name, array in feed.items():
            self._digest.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            # As bytes, because the types of ml_dtypes do not offer a buffer.
            self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._is_all_zero = self._is_all_zero and not any(a.any() for a in feed.values())

    def refuse_zeros(self, description: str) -> None:
        if self._is_all_zero:
            raise DataError(
                f"all values of {self.count} feeds are 0 ({description}): nothing can be "
                "calibrated on that; give real samples"
            )

    def total(self) -> _Total:
        return _Total(count=self.count, fingerprint=self._digest.hexdigest()[:16])
