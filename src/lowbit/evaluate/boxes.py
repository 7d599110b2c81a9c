"""Find boxes in a detector's outputs, as far as their layout is known.

Two layouts are known: one tensor with four coordinates and a score for each class along one axis (YOLO,
with or without an objectness), and rows of corners, score and class, as models with a suppression give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

_LEAST_SCORE = 0.25
_OVERLAP = 0.5
_MOST = 20
_ROW = 6
_FEWEST, _MOST_CHANNELS = 5, 400
_FEWEST_PLACES = 64
_WITH_OBJECTNESS = 85

Floats = NDArray[np.float64]


class Box(msgspec.Struct, frozen=True, array_like=True):
    """A box in parts of the image's width and height, with its score and its class."""

    left: float
    top: float
    right: float
    bottom: float
    score: float
    label: int


def find_boxes(
    outputs: Mapping[str, NDArray[Any]], size: tuple[int, int]
) -> tuple[Box, ...] | None:
    """Return the boxes on an image of height and width ``size``; ``None`` if these are no boxes."""
    arrays = [a for a in outputs.values() if a.dtype.kind == "f" and a.ndim == 3 and len(a) == 1]
    for array in arrays:
        rows = _rows(array[0].astype(np.float64))
        if rows is not None:
            return _boxes(*rows, size)
    return None


def _rows(array: Floats) -> tuple[Floats, Floats, NDArray[np.intp]] | None:
    """Return corners, scores and classes of all candidates."""
    if array.shape[1] == _ROW and _is_selected(array):
        return array[:, :4], array[:, 4], array[:, 5].astype(np.intp)
    if array.shape[0] < array.shape[1]:
        array = array.T
    places, channels = array.shape
    if not (_FEWEST <= channels <= _MOST_CHANNELS and places >= _FEWEST_PLACES):
        return None
    scores = array[:, 4:]
    if scores.min() < -1e-3 or scores.max() > 1 + 1e-3 or array[:, :4].max() <= 2:
        return None
    if _has_objectness(array):
        scores = array[:, 5:] * array[:, 4:5]
    return _corners(array[:, :4]), scores.max(axis=1), scores.argmax(axis=1)


def _is_selected(array: Floats) -> bool:
    scores, labels = array[:, 4], array[:, 5]
    return bool(
        scores.min() >= 0 and scores.max() <= 1 and labels.min() >= 0 and (labels % 1 == 0).all()
    )


def _has_objectness(array: Floats) -> bool:
    """Whether the fifth number is the chance of any object, as in YOLOv5: 80 classes make 85 numbers."""
    return bool(array.shape[1] == _WITH_OBJECTNESS)


def _corners(boxes: Floats) -> Floats:
    """Return left, top, right, bottom of boxes that may be given by centre and size."""
    if (boxes[:, 2:] >= boxes[:, :2]).all():
        return boxes
    half = boxes[:, 2:] / 2
    return np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)


def _boxes(
    corners: Floats, scores: Floats, labels: NDArray[np.intp], size: tuple[int, int]
) -> tuple[Box, ...]:
    height, width = size
    corners = corners / np.array([width, height, width, height])
    kept: list[int] = []
    for at in np.argsort(-scores, kind="stable"):
        if scores[at] < _LEAST_SCORE or len(kept) == _MOST:
            break
        if all(
            labels[at] != labels[k] or _overlap(corners[at], corners[k]) < _OVERLAP for k in kept
        ):
            kept.append(int(at))
    return tuple(_box(corners[k], float(scores[k]), int(labels[k])) for k in kept)


def _box(corners: Floats, score: float, label: int) -> Box:
    left, top, right, bottom = (round(float(c), 4) for c in corners)
    return Box(left, top, right, bottom, round(score, 3), label)


def _overlap(a: Floats, b: Floats) -> float:
    """Return the intersection over the union of two boxes."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    shared = float(np.prod(np.maximum(high - low, 0)))
    both = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - shared
    return shared / both if both > 0 else 0.0
