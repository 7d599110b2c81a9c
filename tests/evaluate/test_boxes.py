"""Boxes are read out of the two layouts that detectors have."""

from __future__ import annotations

import numpy as np

from lowbit.evaluate.boxes import find_boxes


def _yolo(places: int = 100, classes: int = 3) -> np.ndarray:
    """Return candidates of which two are confident, and a third doubles the first."""
    found = np.zeros((1, 4 + classes, places), np.float32)
    found[0, :4, :] = np.array([50, 40, 20, 10])[:, None]
    found[0, 4 + 1, 7] = 0.9
    found[0, 4 + 1, 8] = 0.6
    found[0, :4, 20] = (20, 20, 10, 10)
    found[0, 4 + 2, 20] = 0.5
    return found


def test_centres_and_sizes_become_corners_and_doubles_go() -> None:
    boxes = find_boxes({"y": _yolo()}, (80, 100))

    assert boxes is not None
    assert [(b.label, round(b.score, 2)) for b in boxes] == [(1, 0.9), (2, 0.5)]
    first = boxes[0]
    assert (first.left, first.top, first.right, first.bottom) == (0.4, 0.4375, 0.6, 0.5625)


def test_rows_that_a_suppression_left_are_taken_as_they_are() -> None:
    rows = np.array([[[10, 20, 30, 40, 0.8, 5], [0, 0, 1, 1, 0.1, 2]]], np.float32)

    boxes = find_boxes({"y": rows}, (100, 100))

    assert boxes is not None
    assert [(b.left, b.bottom, b.label) for b in boxes] == [(0.1, 0.4, 5)]


def test_other_outputs_are_no_boxes() -> None:
    random = np.random.default_rng(0)

    assert find_boxes({"y": random.normal(size=(1, 7, 100)).astype(np.float32)}, (8, 8)) is None
    assert find_boxes({"y": np.ones((1, 1000), np.float32)}, (8, 8)) is None
    assert find_boxes({"y": np.ones((1, 3, 64, 64), np.float32)}, (8, 8)) is None
