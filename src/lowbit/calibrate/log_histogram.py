"""A histogram that needs no range first: count by the leading bits of the float.

The top 16 bits of a float32 are its sign, exponent and 7 bits of mantissa, so equal bits mean
values within 1/128 of each other, at any magnitude. Counting by them is one pass, adds up exactly
in any order and any batching, and an outlier does not coarsen the bins of the bulk.
Magnitudes below 2**-32 count as zero and above 2**32 as the last bin.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray

_LOWEST_EXPONENT, _HIGHEST_EXPONENT = 127 - 32, 127 + 32
_FIRST, _LAST = _LOWEST_EXPONENT << 7, _HIGHEST_EXPONENT << 7
_NOT_FINITE = 0xFF << 7
_SIGN = 1 << 15
BINS = _LAST - _FIRST
"""Bins for each sign."""

Counts = NDArray[np.int64]
_FEWEST_TOGETHER, _MOST_TOGETHER, _WAITING = 1 << 15, 1 << 18, 1 << 22


def values_together(counters: int) -> int:
    """Return how many values each of so many counters should gather: all may wait at once."""
    return min(_MOST_TOGETHER, max(_FEWEST_TOGETHER, _WAITING // max(counters, 1)))


def count(x: FloatArray) -> tuple[Counts, int]:
    """Return the counts of ``x`` by bin (see ``fold``), and how many values are not finite."""
    return fold(raw_counts(x))


def raw_counts(x: FloatArray) -> Counts:
    """Return how often each leading half occurs, up to the largest that does."""
    return np.bincount(_leading_halves(x))


def _leading_halves(x: FloatArray) -> NDArray[np.uint16]:
    flat = np.ascontiguousarray(x, np.float32).reshape(-1)
    return flat.view(np.uint16)[1::2]  # the high half on little-endian machines


class Counter:
    """Counts of many arrays, folded; several threads may add to it.

    Small arrays are gathered and counted together: the table of counts is longer than they are.
    """

    def __init__(self, together: int = _FEWEST_TOGETHER) -> None:
        """Start with nothing counted; ``together`` values are counted at a time."""
        self._together = together
        self._waiting: list[NDArray[np.uint16]] = []
        self._size = 0
        self._counts: Counts | None = None
        self._lock = threading.Lock()

    def add(self, x: FloatArray) -> None:
        """Count the values of ``x``."""
        halves = _leading_halves(x).copy()
        with self._lock:
            self._waiting.append(halves)
            self._size += halves.size
            if self._size >= self._together:
                self._count()

    def counts(self) -> Counts | None:
        """Return what was counted (see ``fold``), or nothing if nothing was."""
        with self._lock:
            self._count()
        return self._counts

    def _count(self) -> None:
        if self._waiting:
            # Folded at once: the table of all leading halves is three times as large.
            new, _ = fold(np.bincount(np.concatenate(self._waiting)))
            self._counts = new if self._counts is None else np.add(self._counts, new, out=new)
        self._waiting, self._size = [], 0


def fold(raw: Counts) -> tuple[Counts, int]:
    """Return counts of negative bins, zero, positive bins, and how many values are not finite.

    Index ``BINS`` is zero; ``BINS + 1 + k`` is the k-th positive bin from zero outwards, and
    ``BINS - 1 - k`` its mirror image.
    """
    counts = np.zeros(2 * BINS + 1, np.int64)
    not_finite = 0
    for half, outwards in ((raw[:_SIGN], counts[BINS + 1 :]), (raw[_SIGN:], counts[:BINS][::-1])):
        body = half[_FIRST:_LAST]
        outwards[: len(body)] = body
        outwards[-1] += half[_LAST:_NOT_FINITE].sum()
        counts[BINS] += half[:_FIRST].sum()
        not_finite += int(half[_NOT_FINITE:].sum())
    return counts, not_finite


def edges() -> NDArray[np.float64]:
    """Return the ``BINS + 1`` edges of the positive bins, from zero outwards."""
    bits = np.arange(_FIRST, _LAST + 1, dtype=np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)
