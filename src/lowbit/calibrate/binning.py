"""Counts between edges that are about evenly spaced: those of ``numpy.histogram``, but faster.

NumPy sorts values to count them between given edges. Where the edges are even, a multiplication
tells the bin but for rounding: it is made to err downwards only, and what lies above its bin's
upper edge moves up by one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray

# Values counted at once: what is made of them stays in the cache.
_BLOCK = 1 << 16
# A float32 product is off by less than this, relatively.
_ROUNDING = 2.0**-21
# Edges further from even than this, in bins, are left to NumPy.
_UNEVEN = 0.4


def count_between(x: FloatArray, edges: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return ``numpy.histogram(x, edges)[0]``, for finite ``x``."""
    # As NumPy's scalars: a plain float would be rounded to float32 where it meets one.
    bins, low, high = len(edges) - 1, np.float64(edges[0]), np.float64(edges[-1])
    if x.dtype != np.float32 or x.size == 0 or not high > low:
        return np.histogram(x, edges)[0]
    per_value = bins / (high - low)
    even = (edges.astype(np.float64) - low) * per_value
    reach = bins + abs(low) * per_value
    error = float(np.max(np.abs(even - np.arange(bins + 1)))) + reach * _ROUNDING
    if error > _UNEVEN:
        return np.histogram(x, edges)[0]
    x = x.reshape(-1)
    if x.min() < low or x.max() > high:
        x = x[(x >= low) & (x <= high)]
    upper = _rounded_up(edges[1:])
    upper[-1] = np.inf  # what lies on the last edge belongs to the last bin
    return _count(x, np.float32(per_value), np.float32(-low * per_value - error), upper)


def _count(
    x: FloatArray, slope: np.float32, offset: np.float32, upper: NDArray[np.float32]
) -> NDArray[np.int64]:
    bins = len(upper)
    counts = np.zeros(bins + 1, np.int64)
    size = min(_BLOCK, x.size)
    places, near = np.empty(size, np.float32), np.empty(size, np.float32)
    index = np.empty(size, np.intp)
    for start in range(0, x.size, _BLOCK):
        block = x[start : start + _BLOCK]
        place, above, at = places[: block.size], near[: block.size], index[: block.size]
        np.multiply(block, slope, out=place)
        np.add(place, offset, out=place)
        np.copyto(at, place, casting="unsafe")
        np.take(upper, at, out=above, mode="clip")
        moved = at[block >= above]
        counts += np.bincount(at, minlength=bins + 1)
        if moved.size:
            moves = np.bincount(moved, minlength=bins)
            counts[:-1] -= moves
            counts[1:] += moves
    return counts[:-1]


def _rounded_up(edges: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the least float32 not below each edge: no float32 lies between the two."""
    near = edges.astype(np.float32)
    return np.where(near < edges, np.nextafter(near, np.float32(np.inf)), near)
