from __future__ import annotations

from typing import Any

import pytest

from lowbit.data import PREPROCESSINGS, Preprocessing, find_preprocessing
from lowbit.data.preprocessing import as_size
from lowbit.errors import ConfigError


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
        ({"letterbox": True, "crop": 5}, r"letterbox keeps the whole picture"),
    ],
)
def test_values_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Preprocessing(**options)
