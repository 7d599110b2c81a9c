"""The words of choices, the values of options, and what image options make."""

from __future__ import annotations

import argparse
from typing import get_args

import pytest

from lowbit.cli import options as commands
from lowbit.cli import parser as values
from lowbit.cli.configuration import make_preprocessing
from lowbit.cli.saving import check_outputs, writing
from lowbit.config import config, methods
from lowbit.data import PREPROCESSINGS, Preprocessing, preprocessing
from lowbit.errors import ConfigError, OutputError
from lowbit.targets.builtin import BUILTIN
from lowbit.transforms.rewrites import REWRITES


def test_choices_are_those_of_the_library() -> None:
    assert set(commands.METHODS) == set(methods.BY_NAME)
    assert set(commands.WEIGHT_METHODS) == set(methods.FOR_WEIGHTS)
    assert get_args(config.Head) == commands.HEADS
    assert get_args(config.Domain) == commands.DOMAINS
    assert tuple(PREPROCESSINGS) == commands.PREPROCESSINGS
    assert get_args(preprocessing.Layout) == commands.LAYOUTS
    assert get_args(preprocessing.ChannelOrder) == commands.CHANNEL_ORDERS


def test_every_rewrite_of_a_target_can_be_named() -> None:
    for target in BUILTIN.values():
        assert {*target.transforms, *target.arithmetic} <= set(REWRITES)


def test_values_are_read() -> None:
    assert values.count("12") == 12
    assert values.percent("99.9") == 99.9
    assert values.factor("1/255") == 1 / 255
    assert values.decibels("-3.5") == -3.5
    assert values.channels("0.5") == (0.5,)
    assert values.channels("-1,0,1/2") == (-1.0, 0.0, 0.5)
    assert values.size("256") == 256
    assert values.size("480,640") == (480, 640)
    assert values.pattern("re:a|b") == "re:a|b"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (values.count, "1.5"),
        (values.count, "-1"),
        (values.percent, "101"),
        (values.factor, "1/x"),
        (values.factor, "nan"),
        (values.channels, "1,,2"),
        (values.size, "12x12"),
        (values.size, "0"),
        (values.pattern, "re:("),
    ],
)
def test_values_that_mean_nothing_are_refused(kind, text) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        kind(text)


def images(*words: str) -> Preprocessing | None:
    parser = commands.make_parser()
    return make_preprocessing(parser.parse(["compare", "a", "b", "--data", "c", *words]))


def test_no_image_option_is_no_preprocessing() -> None:
    assert images() is None


def test_a_named_preprocessing_is_taken_whole() -> None:
    assert images("--preprocess", "caffe") == PREPROCESSINGS["caffe"]


def test_options_override_parts_of_a_named_preprocessing() -> None:
    made = images("--preprocess", "imagenet", "--std", "1", "--channel-order", "BGR")

    assert made is not None
    assert (made.std, made.channel_order) == ((1.0,), "BGR")
    assert (made.mean, made.resize) == (PREPROCESSINGS["imagenet"].mean, 256)


def test_options_alone_start_from_nothing() -> None:
    made = images("--scale", "1", "--layout", "NHWC")

    assert made == Preprocessing(scale=1.0, layout="NHWC")


def test_sizes_given_in_full_are_no_proportion() -> None:
    both = images("--preprocess", "imagenet", "--resize", "300", "--crop", "280")
    one = images("--preprocess", "imagenet", "--resize", "300")
    boxed = images("--preprocess", "yolo", "--resize", "320,320")

    assert both is not None
    assert one is not None
    assert boxed is not None
    assert (both.proportional, one.proportional, boxed.proportional) == (False, True, False)


def test_what_no_picture_could_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="letterbox"):
        images("--preprocess", "yolo", "--crop", "100")


def test_files_appear_together_or_not_at_all(folder) -> None:
    def fail() -> None:
        with writing({"a": lambda path: path.write_text("new"), "b": lambda _: None}):
            raise RuntimeError

    (folder / "a").write_text("old")

    with pytest.raises(RuntimeError):
        fail()

    assert (folder / "a").read_text() == "old"
    assert [path.name for path in folder.iterdir()] == ["a"]


def test_two_outputs_of_one_name_are_refused() -> None:
    with pytest.raises(OutputError, match=r"--b \./x would overwrite x"):
        check_outputs({"--a": "x", "--b": "./x", "--c": None})
