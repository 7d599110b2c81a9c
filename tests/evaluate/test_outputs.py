"""Outputs that mix boxes and scores are measured in slices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lowbit.evaluate.outputs import OutputSlice, SliceErrors, find_slices


def boxes_and_scores(axis: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    mixed = np.concatenate([rng.uniform(50, 600, (1, 4, 90)), rng.uniform(0, 0.9, (1, 20, 90))], 1)
    return (mixed if axis == 1 else mixed.transpose(0, 2, 1)).astype(np.float32)


@pytest.mark.parametrize(("axis", "name"), [(1, "out[:, 0:4]"), (2, "out[:, :, 0:4]")])
def test_boxes_and_scores_are_told_apart(axis, name) -> None:
    slices = find_slices({"out": boxes_and_scores(axis)})

    assert [part.name for part in slices] == [name, name.replace("0:4", "4:24")]


def test_a_slice_has_the_channels_that_its_name_says() -> None:
    array = boxes_and_scores(2)

    boxes, scores = find_slices({"out": array})

    np.testing.assert_array_equal(boxes.of(array), array[:, :, 0:4])
    np.testing.assert_array_equal(scores.of(array), array[:, :, 4:24])
    np.testing.assert_array_equal(OutputSlice("out").of(array), array)


def test_small_values_before_large_ones_are_told_apart_too() -> None:
    slices = find_slices({"out": boxes_and_scores(1)[:, ::-1]})

    assert [part.name for part in slices] == ["out[:, 0:20]", "out[:, 20:24]"]


def test_an_output_of_one_kind_is_one_slice() -> None:
    rng = np.random.default_rng(0)

    for shape in ((1, 1000), (1, 21, 16, 16), (1, 5)):
        array = rng.normal(size=shape).astype(np.float32)
        assert find_slices({"y": array}) == (OutputSlice("y"),)
    assert OutputSlice("y").name == "y"


def test_values_that_thin_out_channel_by_channel_are_one_slice() -> None:
    factor = 10.0 ** -np.arange(6).reshape(1, 6, 1)

    assert find_slices({"y": np.float32(np.ones((1, 6, 50)) * factor)}) == (OutputSlice("y"),)


def test_two_magnitudes_that_are_not_apart_are_one_slice() -> None:
    y = np.ones((1, 4, 50), np.float32)
    y[:, 2:] *= 7.9  # less than eight times

    assert find_slices({"y": y}) == (OutputSlice("y"),)
    y[:, 2:] *= 1.1
    assert [part.name for part in find_slices({"y": y})] == ["y[:, 0:2]", "y[:, 2:4]"]


def test_integers_and_empty_outputs_have_no_slice() -> None:
    outputs = {
        "class": np.zeros((1, 5), np.int64),
        "none": np.zeros((0, 4), np.float32),
        "y": np.ones((1, 5), np.float32),
    }

    assert find_slices(outputs) == (OutputSlice("y"),)


def test_noise_in_scores_is_not_drowned_by_boxes() -> None:
    want = boxes_and_scores(1)
    got = want.copy()
    got[:, 4:] = 0
    errors = SliceErrors(find_slices({"out": want}))

    errors.add({"out": want}, {"out": got})

    figures = errors.by_name()
    assert figures["out[:, 0:4]"].noise == 0
    assert figures["out[:, 4:24]"].sqnr_db == pytest.approx(0)
    # The mean of nothing lost in one slice and everything in the other.
    assert errors.noise == pytest.approx(0.5)


def test_samples_add_up() -> None:
    rng = np.random.default_rng(1)
    want, noise = rng.normal(size=(3, 1, 40)), 0.1 * rng.normal(size=(3, 1, 40))
    errors = SliceErrors([OutputSlice("y")])

    for a, e in zip(want, noise, strict=True):
        errors.add({"y": a}, {"y": a + e})

    assert errors.by_name()["y"].max_error == pytest.approx(np.abs(noise).max())
    assert errors.noise == pytest.approx(np.square(noise).sum() / np.square(want).sum())


def test_a_slice_without_a_signal_is_passed_over() -> None:
    errors = SliceErrors([OutputSlice("zero"), OutputSlice("y")])
    assert math.isnan(errors.noise)

    errors.add({"zero": np.zeros(4), "y": np.ones(4)}, {"zero": np.ones(4), "y": np.full(4, 1.5)})

    assert errors.noise == pytest.approx(0.25)
