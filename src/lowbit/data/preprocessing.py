"""What is done to a picture before a model sees it, and the four usual ways by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from lowbit.errors import ConfigError, did_you_mean

Layout: TypeAlias = Literal["auto", "NCHW", "NHWC"]
ChannelOrder: TypeAlias = Literal["RGB", "BGR"]
Interpolation: TypeAlias = Literal["bicubic", "bilinear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """From pixels to input values: ``(pixel * scale - mean) / std``, after resize and crop.

    Attributes:
        mean: Subtracted from each channel, in the order R, G, B whatever ``channel_order`` says;
            one value serves all channels.
        std: Divides each channel, as ``mean``.
        scale: Multiplies the pixel values 0..255.
        resize: Length of the shorter side, or ``(height, width)`` of the whole picture. Without
            ``resize`` and ``crop`` the whole picture is resized to what the model fixes.
        crop: Side, or ``(height, width)``, of the part that is cut out of the centre. Without it
            what the model fixes.
        letterbox: Fit the whole picture into ``resize`` (or what the model fixes) and pad with 114.
        layout: Where the channels are; ``auto`` finds the axis of size 1 or 3 in the model.
        channel_order: Order in which the model wants the channels.
        interpolation: Filter of the resize.
        proportional: ``resize`` and ``crop`` are a proportion: a model of another fixed size gets
            both scaled to it.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    scale: float = 1 / 255
    resize: int | tuple[int, int] | None = None
    crop: int | tuple[int, int] | None = None
    letterbox: bool = False
    layout: Layout = "auto"
    channel_order: ChannelOrder = "RGB"
    interpolation: Interpolation = "bicubic"
    proportional: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no picture could be prepared with."""
        _check_choice("layout", self.layout, get_args(Layout))
        _check_choice("channel order", self.channel_order, get_args(ChannelOrder))
        _check_choice("interpolation", self.interpolation, get_args(Interpolation))
        _check_channels("mean", self.mean)
        _check_channels("std", self.std)
        _check_size("resize", self.resize)
        _check_size("crop", self.crop)
        if self.std is not None and not all(value > 0 for value in self.std):
            raise ConfigError(f"std is {self.std}, expected values above 0: pixels are divided")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"scale is {self.scale}, expected a number above 0 such as 1/255")
        if self.letterbox and self.crop is not None:
            raise ConfigError(
                f"letterbox keeps the whole picture, so crop {self.crop} cannot be had with it; "
                "leave one of them out"
            )


def find_preprocessing(name: str) -> Preprocessing:
    """Return the named preprocessing."""
    if name not in PREPROCESSINGS:
        known = ", ".join(PREPROCESSINGS)
        near = did_you_mean(name, PREPROCESSINGS)
        raise ConfigError(f"unknown preprocessing {name!r}{near} (known are {known})")
    return PREPROCESSINGS[name]


def as_size(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return ``(height, width)``; a single number is the side of a square."""
    return (value, value) if isinstance(value, int) else value


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        near = did_you_mean(value, choices)
        raise ConfigError(f"unknown {what} {value!r}{near} (known are {', '.join(choices)})")


def _check_channels(what: str, values: tuple[float, ...] | None) -> None:
    if values is None:
        return
    if len(values) not in (1, 3) or not all(math.isfinite(value) for value in values):
        raise ConfigError(
            f"{what} is {tuple(values)}, expected 1 number, or 3 in the order R, G, B"
        )


def _check_size(what: str, value: int | tuple[int, int] | None) -> None:
    if value is None:
        return
    size = as_size(value)
    if len(size) != 2 or min(size) < 1:
        raise ConfigError(f"{what} is {value}, expected pixels above 0: one number or height,width")


PREPROCESSINGS: Mapping[str, Preprocessing] = MappingProxyType(
    {
        "imagenet": Preprocessing(
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            resize=256,
            crop=224,
            proportional=True,
        ),
        "tensorflow": Preprocessing(
            mean=(1.0,), scale=1 / 127.5, resize=256, crop=224, proportional=True
        ),
        "caffe": Preprocessing(
            mean=(123.68, 116.779, 103.939),
            scale=1.0,
            resize=256,
            crop=224,
            channel_order="BGR",
            proportional=True,
        ),
        "yolo": Preprocessing(
            resize=640, letterbox=True, interpolation="bilinear", proportional=True
        ),
    }
)
"""The usual preprocessings; ``dataclasses.replace`` makes a variant of one."""
