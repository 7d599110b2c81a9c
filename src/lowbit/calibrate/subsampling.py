"""Subsample tensors: evenly spaced rows represent a whole tensor.

Histograms and means of some ten thousand values a sample serve as well as those of a million and
much faster. What is taken depends on the shape of a single sample only, so the result does not
depend on batching.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from lowbit.numerics.formats import FloatArray

# Values of one sample that are enough, and the fewest rows of it.
_ENOUGH, _LEAST_ROWS = 1 << 13, 4
# Where the rows of feature maps and of sequences lie.
_ROW_AXES = MappingProxyType({4: 2, 3: 1})


def row_step(shape: Sequence[int]) -> int:
    """Return how far apart the rows of a tensor are that are taken; 1 if all are."""
    axis = _ROW_AXES.get(len(shape))
    return 1 if axis is None else _step(shape, axis)


def _step(shape: Sequence[int], axis: int) -> int:
    size = 1
    for length in shape[1:]:
        size *= length
    return max(1, min(size // _ENOUGH, shape[axis] // _LEAST_ROWS))


def subsampled(x: FloatArray, channel_axis: int | None = None) -> FloatArray:
    """Return ``x``, or evenly spaced rows of it when one sample has more values than needed.

    No channel is left out: where they lie as rows do elsewhere, as before a 1d convolution, positions are.
    """
    axis = _ROW_AXES.get(x.ndim)
    if axis is None or not x.size:
        return x
    if channel_axis is not None and channel_axis % x.ndim == axis:
        axis = x.ndim - 1
    step = _step(x.shape, axis)
    return x if step < 2 else x[(slice(None),) * axis + (slice(step // 2, None, step),)]
