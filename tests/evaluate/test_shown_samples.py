"""What is shown of samples: classes, boxes and images that both models give."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from lowbit.evaluate.boxes import find_boxes
from lowbit.evaluate.runner import ComparedSample
from lowbit.evaluate.shown_samples import show_samples

_SIZE = (64, 128)


def _yolo(channels_last: bool = False) -> np.ndarray:
    """Return 100 candidates of 3 classes: two on one object, one on another, given by their centres."""
    array = np.zeros((7, 100), np.float32)
    array[:4] = np.array([[5, 5, 2, 2]]).T
    array[:, 10] = [64, 32, 32, 16, 0.9, 0.1, 0.0]
    array[:, 11] = [65, 32, 32, 16, 0.8, 0.1, 0.0]
    array[:, 50] = [16, 16, 16, 16, 0.0, 0.0, 0.6]
    return (array.T if channels_last else array)[None]


@pytest.mark.parametrize("channels_last", [False, True])
def test_boxes_of_a_detector_are_suppressed_and_relative(channels_last: bool) -> None:
    found = find_boxes({"y": _yolo(channels_last)}, _SIZE)

    assert found is not None
    assert [(b.label, b.score) for b in found] == [(0, 0.9), (2, 0.6)]
    first = found[0]
    assert (first.left, first.top, first.right, first.bottom) == (0.375, 0.375, 0.625, 0.625)


def test_rows_of_corners_score_and_class_are_boxes() -> None:
    rows = np.array([[[0, 0, 64, 32, 0.7, 5], [0, 0, 10, 10, 0.1, 1]]], np.float32)

    (box,) = find_boxes({"y": rows}, _SIZE) or ()

    assert (box.right, box.bottom, box.label) == (0.5, 0.5, 5)


def test_an_embedding_has_no_boxes() -> None:
    rng = np.random.default_rng(0)
    assert find_boxes({"y": rng.normal(size=(1, 128, 384)).astype(np.float32)}, _SIZE) is None


def _sample(outputs: np.ndarray, quantized: np.ndarray) -> ComparedSample:
    image = np.linspace(-2, 2, 3 * 64 * 128, dtype=np.float32).reshape(1, 3, *_SIZE)
    return ComparedSample({"x": image}, {"y": outputs}, {"y": quantized})


def test_classes_are_the_best_of_both() -> None:
    logits = np.array([[0.0, 3.0, 1.0, 2.0]], np.float32)
    (shown,) = show_samples([_sample(logits, logits[:, ::-1])], frozenset({"y"}))

    (output,) = shown.outputs
    assert [c.label for c in output.float_classes] == [1, 3, 2]
    assert [c.label for c in output.quantized_classes] == [2, 0, 1]
    assert output.float_classes[0].probability == pytest.approx(0.6439, abs=1e-4)


def test_images_are_small_and_on_one_scale() -> None:
    want = np.zeros((1, 1, 600, 400), np.float32)
    want[..., :200] = 1
    (shown,) = show_samples([_sample(want, want * 0.5)], frozenset())

    pictures = []
    for address in (shown.outputs[0].float_image, shown.outputs[0].quantized_image):
        data = base64.b64decode(address.removeprefix("data:image/jpeg;base64,"))
        pictures.append(np.asarray(Image.open(io.BytesIO(data)).convert("L")))
    assert pictures[0].shape == (320, 213)
    assert pictures[0].max() >= 250
    assert 120 <= pictures[1].max() <= 135


def test_what_has_nothing_to_show_is_left_out() -> None:
    rows = np.zeros((1, 5), np.float32)
    assert show_samples([_sample(rows, rows)], frozenset()) == ()
