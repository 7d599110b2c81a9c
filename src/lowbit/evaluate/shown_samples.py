"""A few samples for the report: the image, with the classes, boxes or images of both models."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lowbit.evaluate.boxes import Box, find_boxes
from lowbit.evaluate.runner import ComparedSample
from lowbit.numerics.metrics import softmax

_WIDEST = 320
_BEST = 3
_FEWEST_CLASSES = 2
_SMALLEST_IMAGE = 16


class ClassScore(msgspec.Struct, frozen=True, array_like=True):
    """A class with its probability."""

    label: int
    probability: float


class ShownOutput(msgspec.Struct, frozen=True, kw_only=True):
    """One output of the float and the quantized model: the best classes, or an image each."""

    name: str
    float_classes: tuple[ClassScore, ...] = ()
    quantized_classes: tuple[ClassScore, ...] = ()
    float_image: str = ""
    quantized_image: str = ""


class ShownSample(msgspec.Struct, frozen=True, kw_only=True):
    """One sample, its image as a data address if it is one; boxes are ``None`` where none are found."""

    image: str = ""
    float_boxes: tuple[Box, ...] | None = None
    quantized_boxes: tuple[Box, ...] | None = None
    outputs: tuple[ShownOutput, ...] = ()


def show_samples(
    samples: Sequence[ComparedSample], classes: frozenset[str]
) -> tuple[ShownSample, ...]:
    """Return what there is to see of samples; ``classes`` are outputs that hold classes."""
    shown = (_shown(sample, classes) for sample in samples)
    return tuple(s for s in shown if s.outputs or s.float_boxes is not None)


def _shown(sample: ComparedSample, classes: frozenset[str]) -> ShownSample:
    images = [p for p in (_pixels(array) for array in sample.feed.values()) if p is not None]
    pixels = images[0] if images else None
    boxes: list[tuple[Box, ...] | None] = [None, None]
    if pixels is not None:
        size = (pixels.shape[0], pixels.shape[1])
        boxes = [find_boxes(outputs, size) for outputs in (sample.outputs, sample.quantized)]
    if None in boxes:
        boxes = [None, None]
    rows = (
        _output(name, want, sample.quantized[name], is_classes=name in classes)
        for name, want in sample.outputs.items()
        if name in sample.quantized and boxes[0] is None
    )
    return ShownSample(
        image="" if pixels is None else _encoded(pixels),
        float_boxes=boxes[0],
        quantized_boxes=boxes[1],
        outputs=tuple(row for row in rows if row is not None),
    )


def _output(
    name: str, want: NDArray[Any], got: NDArray[Any], *, is_classes: bool
) -> ShownOutput | None:
    if not isinstance(want, np.ndarray) or want.shape != got.shape or want.dtype.kind != "f":
        return None
    if is_classes and want.ndim == 2 and want.shape[1] >= _FEWEST_CLASSES:
        return ShownOutput(
            name=name, float_classes=_classes(want[0]), quantized_classes=_classes(got[0])
        )
    limits = (float(want.min()), float(want.max())) if want.size else (0.0, 0.0)
    first, second = _pixels(want, limits), _pixels(got, limits)
    if first is None or second is None:
        return None
    return ShownOutput(name=name, float_image=_encoded(first), quantized_image=_encoded(second))


def _classes(row: NDArray[Any]) -> tuple[ClassScore, ...]:
    values = row.astype(np.float64)
    is_probability = values.min() >= 0 and abs(values.sum() - 1) < 1e-2
    chances = values if is_probability else softmax(values)
    best = np.argsort(-chances, kind="stable")[:_BEST]
    return tuple(ClassScore(int(at), round(float(chances[at]), 4)) for at in best)


def _pixels(array: Any, limits: tuple[float, float] | None = None) -> NDArray[np.uint8] | None:
    """Return the first image of a batch as bytes, or ``None`` if the array is no image."""
    if not isinstance(array, np.ndarray) or array.ndim != 4 or array.dtype.kind not in "fiu":
        return None
    image = array[0].astype(np.float32)
    if image.shape[0] in (1, 3):
        image = image.transpose(1, 2, 0)
    if image.shape[-1] not in (1, 3) or min(image.shape[:2]) < _SMALLEST_IMAGE:
        return None
    low, high = limits or (float(image.min()), float(image.max()))
    scaled = np.clip((image - low) / ((high - low) or 1.0), 0, 1) * 255
    return np.broadcast_to(scaled, (*image.shape[:2], 3)).astype(np.uint8)


def _encoded(pixels: NDArray[np.uint8]) -> str:
    """Return a small image as a data address."""
    from PIL import Image  # only images need it

    image = Image.fromarray(pixels)
    image.thumbnail((_WIDEST, _WIDEST))
    written = io.BytesIO()
    image.save(written, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(written.getvalue()).decode("ascii")
