from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.data import PREPROCESSINGS, Preprocessing
from lowbit.data.preprocessing import Cover, Framing, Letterbox, Stretch, choose_framing
from lowbit.errors import DataError

IMAGENET = PREPROCESSINGS["imagenet"]
sides = st.integers(1, 3000)


@pytest.mark.parametrize(
    ("wish", "fixed", "expected"),
    [
        (Preprocessing(), (30, 40), Framing(resize=Stretch((30, 40)))),
        (Preprocessing(resize=9), (None, None), Framing(resize=Cover((9, 9)))),
        (Preprocessing(resize=9), (7, 8), Framing(resize=Cover((9, 9)), crop=(7, 8))),
        (Preprocessing(resize=(9, 8)), (None, None), Framing(resize=Stretch((9, 8)))),
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
    wish: Preprocessing, fixed: tuple[int | None, int | None], expected: Framing
) -> None:
    assert choose_framing(wish, fixed, "x") == expected


@pytest.mark.parametrize(
    ("wish", "fixed", "message"),
    [
        (
            Preprocessing(),
            (None, None),
            r"input 'x' takes pictures of \?x\?.*--resize and/or --crop",
        ),
        (Preprocessing(), (None, 32), r"pictures of \?x32"),
        (Preprocessing(letterbox=True), (None, None), r"--resize"),
        (Preprocessing(crop=24), (32, 32), r"would be 24x24 .* the model fixes 32x32"),
        (Preprocessing(resize=(20, 20)), (32, 32), r"too small for the crop"),
        (Preprocessing(resize=20, crop=24), (None, None), r"too small for the crop"),
        (Preprocessing(resize=20, letterbox=True), (None, 32), r"would be 20x20 .* fixes \?x32"),
        (replace(IMAGENET, proportional=False), (299, 299), r"would be 224x224"),
    ],
)
def test_framing_that_cannot_work_is_refused(
    wish: Preprocessing, fixed: tuple[int | None, int | None], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        choose_framing(wish, fixed, "x")


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
    assert str(Framing(resize=Stretch((9, 8)))) == "resized to 9x8"
    assert str(Letterbox((9, 8))) == "letterboxed to 9x8"
