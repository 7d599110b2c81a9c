"""What a detector gives where nothing is counts as little as its score."""

from __future__ import annotations

import numpy as np

from lowbit.evaluate.detections import find_scores, is_sparse, split_scores, weighted
from lowbit.evaluate.outputs import OutputSlice

_RNG = np.random.default_rng(0)


def _heatmap(*shape: int) -> np.ndarray:
    """Return scores that show something at one position."""
    array = np.full(shape, 0.01, np.float32)
    array[(0,) * len(shape)] = 0.9
    return array


def test_numbers_are_weighted_by_the_best_score_of_their_position() -> None:
    scores = np.float32([[[0.5, 0.0], [0.25, 1.0]]])  # two classes at two positions
    boxes = np.float32([[[2.0, 3.0], [4.0, 5.0], [6.0, 7.0]]])

    assert weighted(boxes, scores).tolist() == [[[1.0, 3.0], [2.0, 5.0], [3.0, 7.0]]]


def test_numbers_of_other_positions_stay() -> None:
    boxes = np.ones((1, 4, 30), np.float32)

    assert weighted(boxes, np.zeros((1, 1, 20), np.float32)) is boxes


def test_scores_show_something_at_few_of_many_positions() -> None:
    assert is_sparse(_heatmap(1, 1, 9, 9), 1)
    assert not is_sparse(np.full((1, 1, 9, 9), 0.01, np.float32), 1)  # nothing anywhere
    assert not is_sparse(np.full((1, 1, 9, 9), 0.5, np.float32), 1)  # a mask
    assert not is_sparse(_heatmap(1, 1, 3, 3), 1)  # few positions
    assert not is_sparse(2 * _heatmap(1, 1, 9, 9), 1)  # no probabilities


def test_offsets_have_the_scores_of_their_positions() -> None:
    heat, offsets = OutputSlice("heat"), OutputSlice("offsets")
    elsewhere, list_of_boxes = OutputSlice("elsewhere"), OutputSlice("boxes")
    arrays = {
        heat: _heatmap(1, 1, 9, 9),
        offsets: _RNG.normal(size=(1, 2, 9, 9)).astype(np.float32),
        elsewhere: np.ones((1, 2, 5, 5), np.float32),
        list_of_boxes: np.ones((81, 4), np.float32),
    }

    found = {part: find_scores(part, arrays) for part in arrays}

    assert found == {heat: None, offsets: heat, elsewhere: None, list_of_boxes: None}


def test_of_two_maps_of_scores_none_is_read_by_the_other() -> None:
    arrays = {OutputSlice(n): _heatmap(1, c, 9, 9) for n, c in (("faces", 1), ("hands", 2))}

    assert [find_scores(part, arrays) for part in arrays] == [None, None]


def test_classes_that_are_given_everywhere_are_apart_from_what_says_where() -> None:
    part = OutputSlice("y", 2, 4, 7)
    y = np.zeros((1, 100, 7), np.float32)
    y[0, 3, 4] = 0.8
    y[..., 5:] = 0.6

    assert split_scores(part, y) == [OutputSlice("y", 2, 4, 5), OutputSlice("y", 2, 5, 7)]


def test_classes_that_are_given_where_something_is_stay_together() -> None:
    part = OutputSlice("y", 2, 4, 7)
    y = np.zeros((1, 100, 7), np.float32)
    y[0, 3, 4] = y[0, 9, 6] = 0.8

    assert split_scores(part, y) == [part]
    assert split_scores(OutputSlice("y"), y) == [OutputSlice("y")]
