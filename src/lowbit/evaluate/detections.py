"""Weight the outputs of detectors by their scores.

A detector gives a box, an offset, landmarks and classes at every position of the image, and hardly any
position shows something. What it gives elsewhere is arbitrary and nobody reads it, so each number
counts as much as the float model's score at its position.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowbit.evaluate.outputs import OutputSlice
from lowbit.graph.session import Array

_LEAST_POSITIONS = 64
_SHOWN, _NOTHING = 0.1, 0.05


def weighted(array: Array, scores: Array) -> Array:
    """Return numbers times the best score of their position."""
    axis = _channels(array, scores)
    return array if axis is None else np.asarray(array * scores.max(axis=axis, keepdims=True))


def split_scores(part: OutputSlice, array: Array) -> list[OutputSlice]:
    """Return a run of scores in two, if its first says whether anything is there and the others what.

    Classes are given everywhere then, also where there is nothing.
    """
    if part.axis is None or part.stop - part.start < 2:
        return [part]
    first = OutputSlice(part.output, part.axis, part.start, part.start + 1)
    others = OutputSlice(part.output, part.axis, part.start + 1, part.stop)
    best = others.of(array).max(axis=part.axis)
    tells = is_sparse(first.of(array), part.axis) and float(np.median(best)) > _SHOWN
    return [first, others] if tells else [part]


def find_scores(part: OutputSlice, arrays: Mapping[OutputSlice, Array]) -> OutputSlice | None:
    """Return the scores that say where another output is read, if it has any; both are in ``arrays``."""
    own = arrays[part]
    for other, scores in arrays.items():
        axis = None if other == part else _channels(own, scores)
        if axis is not None and is_sparse(scores, axis) and not is_sparse(own, axis):
            return other
    return None


def is_sparse(array: Array, axis: int) -> bool:
    """Whether channels are scores that show something at a few of many positions."""
    if array.dtype.kind != "f" or not array.size or array.min() < 0 or array.max() > 1:
        return False
    best = array.max(axis=axis)
    is_seen = best.size >= _LEAST_POSITIONS and float(best.max()) >= _SHOWN
    return is_seen and float(np.median(best)) < _NOTHING


def _channels(array: Array, scores: Array) -> int | None:
    """Return the axis of the channels, if all others are the same positions."""
    if array.ndim != scores.ndim or array.ndim < 2:
        return None
    differ = [i for i, (a, b) in enumerate(zip(array.shape, scores.shape, strict=True)) if a != b]
    if len(differ) == 1:
        return differ[0]
    # As many scores as numbers: of a map they are at its second axis, of a list at its last.
    return None if differ else (1 if array.ndim > 3 else array.ndim - 1)
