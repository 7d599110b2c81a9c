from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.data import PREPROCESSINGS, Preprocessing, find_preprocessing
from lowbit.data.preprocessing import Cover, Framing, Letterbox, Resize, as_size, resolve_framing
from lowbit.errors import ConfigError, DataError


def test_the_four_named_ones_are_there_and_cannot_be_changed() -> None:
    assert sorted(PREPROCESSINGS) == ["caffe", "imagenet", "tensorflow", "yolo"]
    with pytest.raises(TypeError):
        PREPROCESSINGS["mine"] = Preprocessing()  # type: ignore[index]


def test_finds_by_name() -> None:
    assert find_preprocessing("yolo") is PREPROCESSINGS["yolo"]


def test_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match="unknown preprocessing 'imagnet'; did you mean 'imagenet'"
    ):
        find_preprocessing("imagnet")


def test_one_number_is_a_square() -> None:
    assert as_size(5) == (5, 5)
    assert as_size((4, 6)) == (4, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "NCWH"}, r"unknown layout 'NCWH'; did you mean 'NCHW'"),
        ({"channel_order": "RBG"}, r"unknown channel order 'RBG'"),
        ({"interpolation": "bicubik"}, r"did you mean 'bicubic'"),
        ({"mean": (1.0, 2.0)}, r"mean is \(1\.0, 2\.0\), expected 1 number, or 3"),
        ({"mean": (float("nan"),)}, r"mean is \(nan,\)"),
        ({"std": (1.0, 0.0, 1.0)}, r"std is .* expected values above 0"),
        ({"scale": 0.0}, r"scale is 0\.0, expected a number above 0"),
        ({"scale": float("inf")}, r"scale is inf"),
        ({"resize": 0}, r"resize is 0, expected pixels above 0"),
        ({"crop": (3, -1)}, r"crop is \(3, -1\)"),
        ({"crop": (3, 3, 3)}, r"crop is \(3, 3, 3\)"),
        ({"letterbox": True, "crop": 5}, r"letterbox keeps the whole image"),
    ],
)
def test_values_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocessing(**options)


IMAGENET = PREPROCESSINGS["imagenet"]
sides = st.integers(1, 3000)


@pytest.mark.parametrize(
    ("preprocessing", "fixed", "expected"),
    [
        (Preprocessing(), (30, 40), Framing(resize=Resize((30, 40)))),
        (Preprocessing(resize=9), (None, None), Framing(resize=Cover((9, 9)))),
        (Preprocessing(resize=9), (7, 8), Framing(resize=Cover((9, 9)), crop=(7, 8))),
        (Preprocessing(resize=(9, 8)), (None, None), Framing(resize=Resize((9, 8)))),
        (Preprocessing(crop=7), (None, 7), Framing(crop=(7, 7))),
        (IMAGENET, (224, 224), Framing(resize=Cover((256, 256)), crop=(224, 224))),
        (IMAGENET, (None, None), Framing(resize=Cover((256, 256)), crop=(224, 224))),
        (IMAGENET, (299, 299), Framing(resize=Cover((342, 342)), crop=(299, 299))),
        (IMAGENET, (112, 224), Framing(resize=Cover((128, 256)), crop=(112, 224))),
        (PREPROCESSINGS["yolo"], (None, None), Framing(resize=Letterbox((640, 640)))),
        (PREPROCESSINGS["yolo"], (320, 416), Framing(resize=Letterbox((320, 416)))),
        (Preprocessing(letterbox=True), (32, 64), Framing(resize=Letterbox((32, 64)))),
        (Preprocessing(letterbox=True, resize=32), (None, 32), Framing(resize=Letterbox((32, 32)))),
    ],
)
def test_framing_follows_the_wish_and_the_model(
    preprocessing: Preprocessing, fixed: tuple[int | None, int | None], expected: Framing
) -> None:
    assert resolve_framing(preprocessing, fixed, "x") == expected


@pytest.mark.parametrize(
    ("preprocessing", "fixed", "message"),
    [
        (
            Preprocessing(),
            (None, None),
            r"input 'x' takes images of \?x\?.*--resize and/or --crop",
        ),
        (Preprocessing(), (None, 32), r"images of \?x32"),
        (Preprocessing(letterbox=True), (None, None), r"--resize"),
        (Preprocessing(crop=24), (32, 32), r"would be 24x24 .* the model fixes 32x32"),
        (Preprocessing(resize=(20, 20)), (32, 32), r"too small for the crop"),
        (Preprocessing(resize=20, crop=24), (None, None), r"too small for the crop"),
        (Preprocessing(resize=20, letterbox=True), (None, 32), r"would be 20x20 .* fixes \?x32"),
        (replace(IMAGENET, proportional=False), (299, 299), r"would be 224x224"),
    ],
)
def test_framing_that_cannot_work_is_refused(
    preprocessing: Preprocessing, fixed: tuple[int | None, int | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        resolve_framing(preprocessing, fixed, "x")


@given(height=sides, width=sides, target=st.tuples(sides, sides))
def test_cover_covers_and_touches_one_side(
    height: int, width: int, target: tuple[int, int]
) -> None:
    got = Cover(target).fit((height, width))

    assert got[0] >= target[0]
    assert got[1] >= target[1]
    assert got[0] == target[0] or got[1] == target[1]


@given(height=sides, width=sides, target=st.tuples(sides, sides))
def test_letterbox_fits_inside_and_touches_one_side(
    height: int, width: int, target: tuple[int, int]
) -> None:
    got = Letterbox(target).fit((height, width))

    assert 1 <= got[0] <= target[0]
    assert 1 <= got[1] <= target[1]
    assert got[0] == target[0] or got[1] == target[1]


def test_framings_can_be_read() -> None:
    assert (
        str(Framing(resize=Cover((9, 9)), crop=(7, 8)))
        == "shorter side resized to 9, cropped to 7x8"
    )
    assert str(Cover((9, 8))) == "resized to cover 9x8"
    assert str(Framing(resize=Resize((9, 8)))) == "resized to 9x8"
    assert str(Letterbox((9, 8))) == "letterboxed to 9x8"
