from __future__ import annotations

import numpy as np
import pytest

from lowbit.data import PREPROCESSINGS, InputInfo, Preprocessing
from lowbit.data.images import plan_pictures
from lowbit.errors import DataError

Shape = tuple[int | str | None, ...] | None


def make(shape: Shape, dtype: type = np.float32) -> list[InputInfo]:
    return [InputInfo("x", np.dtype(dtype), shape)]


@pytest.mark.parametrize(
    ("shape", "layout", "channels", "is_last", "batch", "has_batch"),
    [
        ((1, 3, 8, 9), "auto", 3, False, 1, True),
        (("n", 1, 8, 9), "auto", 1, False, 1, True),
        ((4, 8, 9, 3), "auto", 3, True, 4, True),
        ((None, 8, 9, 1), "auto", 1, True, 1, True),
        ((3, 8, 9), "auto", 3, False, 1, False),
        ((8, 9, 1), "auto", 1, True, 1, False),
        (("n", "c", 8, 9), "NCHW", 3, False, 1, True),
        (("n", 8, 9, "c"), "NHWC", 3, True, 1, True),
    ],
)
def test_axes_are_found(
    shape: Shape,
    layout: str,
    *,
    channels: int,
    is_last: bool,
    batch: int,
    has_batch: bool,
) -> None:
    plan = plan_pictures(make(shape), Preprocessing(layout=layout))  # type: ignore[arg-type]

    assert (plan.channels, plan.is_channels_last) == (channels, is_last)
    assert (plan.batch, plan.has_batch_axis) == (batch, has_batch)
    assert plan.framing.resize is not None
    assert plan.framing.resize.size == (8, 9)


def test_unknown_rank_needs_a_layout_and_a_size() -> None:
    plan = plan_pictures(make(None), Preprocessing(layout="NHWC", crop=5))

    assert plan.has_batch_axis
    assert plan.is_channels_last


@pytest.mark.parametrize(
    ("inputs", "wish", "message"),
    [
        (make((1, 3, 8, 8)) * 2, Preprocessing(), r"one input, this one has 2.*\.npz"),
        (make((1, 8)), Preprocessing(), r"4 \(or 3\) dimensions, 'x' has shape \[1, 8\].*\.npz"),
        (make((1, 3, 8, 8), np.int64), Preprocessing(), r"float or uint8 input, 'x' is int64"),
        (make((1, None, 8, 8)), Preprocessing(), r"no axis of 1 or 3 channels.*--layout"),
        (make(None), Preprocessing(crop=4), r"\[any shape\].*--layout"),
        (
            make((1, 4, 8, 8)),
            Preprocessing(layout="NCHW"),
            r"takes 4 channels, pictures have 1 or 3",
        ),
        (make((1, 3, "h", "w")), Preprocessing(), r"--resize"),
        (make((1, 1, 224, 224)), PREPROCESSINGS["imagenet"], r"mean has 3 values, input 'x' has 1"),
        (make((1, 3, 8, 8), np.uint8), Preprocessing(mean=(1.0,)), r"uint8 .* mean 1 cannot"),
        (make((1, 3, 8, 8), np.uint8), Preprocessing(std=(1.0,)), r"uint8 .* std 1 cannot"),
    ],
)
def test_model_that_takes_no_pictures_is_refused(
    inputs: list[InputInfo], wish: Preprocessing, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan_pictures(inputs, wish)


def test_plan_can_be_read() -> None:
    named = plan_pictures(make((1, 3, 224, 224)), PREPROCESSINGS["caffe"])
    raw = plan_pictures(make((1, 8, 8, 1), np.uint8), Preprocessing())

    assert str(named) == (
        "shorter side resized to 256, cropped to 224x224 (bicubic), BGR NCHW, scale 1, "
        "mean 123.68,116.779,103.939"
    )
    assert str(raw) == "resized to 8x8 (bicubic), gray NHWC"
