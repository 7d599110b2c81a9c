"""Image preprocessing as values: scaling, size and crop, without any pixel.

``Preprocessing`` says what is wanted, the model says what is fixed; ``resolve_framing`` settles it once
for all images, ``Framing`` then answers for an image of any size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from lowbit.errors import ConfigError, DataError, did_you_mean

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
        resize: Length of the shorter side, or ``(height, width)`` of the whole image. Without
            ``resize`` and ``crop`` the whole image is resized to what the model fixes.
        crop: Side, or ``(height, width)``, of the part that is cut out of the centre. Without it
            what the model fixes.
        letterbox: Fit the whole image into ``resize`` (or what the model fixes) and pad with 114.
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
        """Refuse values that no image could be prepared with."""
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
                f"letterbox keeps the whole image, so crop {self.crop} cannot be had with it; "
                "give one of the two"
            )


def find_preprocessing(name: str) -> Preprocessing:
    """Return the named preprocessing."""
    if name not in PREPROCESSINGS:
        known = ", ".join(PREPROCESSINGS)
        near = did_you_mean(name, PREPROCESSINGS)
        raise ConfigError(
            f"unknown preprocessing {name!r}{near} (known are {known}; texts need a tokenizer: --tokenizer FILE, "
            "in Python preprocessing=lowbit.Tokenization(tokenizer=FILE))"
        )
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


Size: TypeAlias = tuple[int, int]
"""Height and width, in this order."""

FreeSize: TypeAlias = tuple[int | None, int | None]
"""Height and width of a model input; ``None`` where it takes any."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Resize the whole image to this size, whatever its proportions."""

    size: Size

    def fit(self, _image: Size) -> Size:
        """Return the size an image is resized to."""
        return self.size

    def __str__(self) -> str:
        return f"resized to {_text(self.size)}"


@dataclass(frozen=True, slots=True)
class Cover:
    """Resize in proportion until this size is just covered."""

    size: Size

    def fit(self, image: Size) -> Size:
        """Return the size an image is resized to."""
        factor = max(want / has for want, has in zip(self.size, image, strict=True))
        height, width = (
            max(want, round(has * factor)) for want, has in zip(self.size, image, strict=True)
        )
        return height, width

    def __str__(self) -> str:
        if self.size[0] == self.size[1]:
            return f"shorter side resized to {self.size[0]}"
        return f"resized to cover {_text(self.size)}"


@dataclass(frozen=True, slots=True)
class Letterbox:
    """Resize in proportion until the image just fits into this size; pad the rest."""

    size: Size

    def fit(self, image: Size) -> Size:
        """Return the size an image is resized to, before the padding."""
        factor = min(want / has for want, has in zip(self.size, image, strict=True))
        height, width = (max(1, round(has * factor)) for has in image)
        return height, width

    def __str__(self) -> str:
        return f"letterboxed to {_text(self.size)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Framing:
    """The resize and the crop that images get, in this order."""

    resize: Resize | Cover | Letterbox | None = None
    crop: Size | None = None

    def __str__(self) -> str:
        crop = None if self.crop is None else f"cropped to {_text(self.crop)}"
        return ", ".join(str(step) for step in (self.resize, crop) if step is not None)


def resolve_framing(preprocessing: Preprocessing, fixed: FreeSize, input_name: str) -> Framing:
    """Return the framing that gives images the requested size, as far as the model can take it."""
    height, width = fixed
    known = None if height is None or width is None else (height, width)
    if preprocessing.letterbox:
        framing = _letterbox(preprocessing, known, input_name)
    elif preprocessing.resize is None and preprocessing.crop is None:
        framing = Framing(resize=Resize(_need(known, fixed, input_name)))
    elif (
        preprocessing.proportional
        and known is not None
        and preprocessing.resize
        and preprocessing.crop
    ):
        framing = _in_proportion(as_size(preprocessing.resize), as_size(preprocessing.crop), known)
    else:
        framing = _as_requested(preprocessing, known)
    _check_fits(framing, fixed, input_name)
    return framing


def _letterbox(preprocessing: Preprocessing, known: Size | None, input_name: str) -> Framing:
    given = None if preprocessing.resize is None else as_size(preprocessing.resize)
    size = known or given if preprocessing.proportional else given or known
    return Framing(resize=Letterbox(_need(size, (None, None), input_name)))


def _need(size: Size | None, fixed: FreeSize, input_name: str) -> Size:
    if size is None:
        have = "x".join("?" if side is None else str(side) for side in fixed)
        raise DataError(
            f"input {input_name!r} takes images of {have} (height x width), so their size is "
            "not known: give --resize and/or --crop (resize=, crop= of Preprocessing)"
        )
    return size


def _in_proportion(resize: Size, crop: Size, known: Size) -> Framing:
    height, width = (
        round(side * whole / part) for side, whole, part in zip(known, resize, crop, strict=True)
    )
    return Framing(resize=Cover((height, width)), crop=known)


def _as_requested(preprocessing: Preprocessing, known: Size | None) -> Framing:
    crop = known if preprocessing.crop is None else as_size(preprocessing.crop)
    if preprocessing.resize is None:
        return Framing(crop=crop)
    if isinstance(preprocessing.resize, int):
        return Framing(resize=Cover(as_size(preprocessing.resize)), crop=crop)
    return Framing(resize=Resize(preprocessing.resize), crop=crop)


def _check_fits(framing: Framing, fixed: FreeSize, input_name: str) -> None:
    """Refuse a framing that cannot work for any image, before one is read."""
    if _is_always_too_small(framing):
        raise DataError(
            f"images for input {input_name!r} are {framing}, but are then too small for the "
            "crop: give a larger --resize or a smaller --crop"
        )
    after = framing.crop
    if after is None and framing.resize is not None and not isinstance(framing.resize, Cover):
        after = framing.resize.size
    if after and any(side not in (None, has) for side, has in zip(fixed, after, strict=True)):
        want = "x".join("?" if side is None else str(side) for side in fixed)
        raise DataError(
            f"images for input {input_name!r} would be {_text(after)} (height x width), but the "
            f"model fixes {want}: give neither --resize nor --crop, or sizes that fit"
        )


def _is_always_too_small(framing: Framing) -> bool:
    if framing.resize is None or framing.crop is None:
        return False
    short = [has < want for has, want in zip(framing.resize.size, framing.crop, strict=True)]
    # A covering resize leaves one side longer than asked for, which may be the one that counts.
    return all(short) if isinstance(framing.resize, Cover) else any(short)


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"
