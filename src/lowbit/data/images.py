"""Turn images into the values of a model input, by a plan made once from the model and the preprocessing.

Imports Pillow, so that only those who have images wait for it.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from lowbit.data.inputs import InputInfo
from lowbit.data.preprocessing import (
    Framing,
    Layout,
    Letterbox,
    Preprocessing,
    Size,
    resolve_framing,
)
from lowbit.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePlan:
    """Everything that is done to an image.

    Attributes:
        info: The input the images are for.
        preprocessing: Values and order of the channels, interpolation.
        framing: Resize and crop.
        channels: 3, or 1 for gray.
        is_channels_last: Whether the channels are the last axis of the input.
        batch: Images that make one feed.
    """

    info: InputInfo
    preprocessing: Preprocessing
    framing: Framing
    channels: int
    is_channels_last: bool
    batch: int

    @property
    def has_batch_axis(self) -> bool:
        """Whether the input has an axis for the batch."""
        return self.info.shape is None or len(self.info.shape) == 4

    @property
    def takes_raw_pixels(self) -> bool:
        """Whether the input wants the pixels 0..255 themselves."""
        return self.info.dtype == np.uint8

    def __str__(self) -> str:
        preprocessing = self.preprocessing
        order = preprocessing.channel_order if self.channels == 3 else "gray"
        layout = "NHWC" if self.is_channels_last else "NCHW"
        steps = [f"{self.framing} ({preprocessing.interpolation})", f"{order} {layout}"]
        if not self.takes_raw_pixels:
            steps.append(f"scale {preprocessing.scale:.6g}")
            steps += [f"mean {_listed(preprocessing.mean)}"] if preprocessing.mean else []
            steps += [f"std {_listed(preprocessing.std)}"] if preprocessing.std else []
        return ", ".join(steps)


def plan_images(inputs: Sequence[InputInfo], preprocessing: Preprocessing) -> ImagePlan:
    """Return how images are fed to a model, or say why they cannot be."""
    info = _image_input(inputs)
    shape = (None,) * 4 if info.shape is None else info.shape
    is_channels_last = _is_channels_last(info, shape[-3:], preprocessing.layout)
    *_, height, width = (_move_last_first(shape[-3:]) if is_channels_last else shape)[-3:]
    plan = ImagePlan(
        info=info,
        preprocessing=preprocessing,
        framing=resolve_framing(preprocessing, (_fixed(height), _fixed(width)), info.name),
        channels=_channels(info, shape[-1 if is_channels_last else -3]),
        is_channels_last=is_channels_last,
        batch=_fixed(shape[0]) or 1 if len(shape) == 4 else 1,
    )
    _check_values(plan)
    return plan


def _image_input(inputs: Sequence[InputInfo]) -> InputInfo:
    way_out = "give the samples as a .npz with one array for each input instead"
    if len(inputs) != 1:
        names = ", ".join(repr(info.name) for info in inputs)
        raise DataError(
            f"images can feed a model of one input, this one has {len(inputs)} ({names}): {way_out}"
        )
    info = inputs[0]
    if info.shape is not None and len(info.shape) not in (3, 4):
        raise DataError(
            f"images need an input of 4 (or 3) dimensions, {info.name!r} has shape "
            f"{info.shape_text}: {way_out}"
        )
    if not info.is_float and info.dtype != np.uint8:
        raise DataError(
            f"images need a float or uint8 input, {info.name!r} is {info.dtype}: {way_out}"
        )
    return info


def _is_channels_last(info: InputInfo, dims: tuple[int | str | None, ...], layout: Layout) -> bool:
    if layout != "auto":
        return layout == "NHWC"
    if dims[0] in (1, 3):
        return False
    if dims[-1] in (1, 3):
        return True
    raise DataError(
        f"input {info.name!r} of shape {info.shape_text} has no axis of 1 or 3 channels to tell "
        "its layout by: give --layout NCHW or NHWC (layout= of Preprocessing)"
    )


def _channels(info: InputInfo, size: int | str | None) -> int:
    channels = _fixed(size)
    if channels not in (None, 1, 3):
        raise DataError(
            f"input {info.name!r} of shape {info.shape_text} takes {channels} channels, images "
            "have 1 or 3: give another --layout, or the samples as a .npz"
        )
    return channels or 3


def _check_values(plan: ImagePlan) -> None:
    for what, values in (("mean", plan.preprocessing.mean), ("std", plan.preprocessing.std)):
        if values is None:
            continue
        if plan.takes_raw_pixels:
            raise DataError(
                f"input {plan.info.name!r} is uint8 and takes the pixels as they are, so {what} "
                f"{_listed(values)} cannot be applied: do not give it"
            )
        if len(values) not in (1, plan.channels):
            raise DataError(
                f"{what} has {len(values)} values, input {plan.info.name!r} has {plan.channels} "
                f"channel: give --{what} with one value"
            )


def _fixed(size: int | str | None) -> int | None:
    return size if isinstance(size, int) else None


def _move_last_first(dims: tuple[int | str | None, ...]) -> tuple[int | str | None, ...]:
    return dims[-1:] + dims[:-1]


def _listed(values: Sequence[float]) -> str:
    return ",".join(f"{value:.6g}" for value in values)


PAD = 114
"""Gray that letterboxed images are padded with, as YOLO was trained."""


def render_file(path: Path, plan: ImagePlan) -> NDArray[Any]:
    """Return the values of the image in a file, without a batch axis."""
    return _rendered(path, plan, f"image {path}")


def render_bytes(data: bytes, plan: ImagePlan, label: str) -> NDArray[Any]:
    """Return the values of the image that a file's bytes hold, without a batch axis."""
    return _rendered(io.BytesIO(data), plan, label)


def _rendered(source: Path | io.BytesIO, plan: ImagePlan, label: str) -> NDArray[Any]:
    try:
        with Image.open(source) as image:
            decoded = _decoded(image, _mode(plan))
    # What Pillow's decoders raise on damaged files is not narrowed down to one class.
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(f"{label} cannot be read ({error}): replace or delete the file") from error
    return _render(decoded, plan, label)


def _decoded(image: Image.Image, mode: str) -> Image.Image:
    """Return an image upright, with 8 bits a channel and no transparency, as viewers show it."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        # 16 bits, of which Pillow would clip all but the darkest to white.
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if "transparency" in upright.info:
        # Pillow warns of palettes with transparency unless it is made explicit first.
        upright = upright.convert("RGBA")
    return upright.convert(mode)


def render_pixels(pixels: NDArray[np.uint8], plan: ImagePlan, label: str) -> NDArray[Any]:
    """Return the values of an image given as ``[H, W]`` or ``[H, W, C]`` pixels in RGB order."""
    is_gray = pixels.ndim == 3 and pixels.shape[-1] == 1
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if is_gray else pixels))
    return _render(image.convert(_mode(plan)), plan, label)


def _mode(plan: ImagePlan) -> str:
    return "RGB" if plan.channels == 3 else "L"


def _render(image: Image.Image, plan: ImagePlan, label: str) -> NDArray[Any]:
    image = _resize(image, plan)
    if plan.framing.crop is not None:
        image = _crop(image, plan.framing.crop, label)
    pixels = np.asarray(image).reshape(image.height, image.width, plan.channels)
    values = pixels if plan.takes_raw_pixels else _normalize(pixels, plan)
    if plan.preprocessing.channel_order == "BGR":
        values = values[..., ::-1]
    if not plan.is_channels_last:
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values)


def _resize(image: Image.Image, plan: ImagePlan) -> Image.Image:
    resize = plan.framing.resize
    if resize is None:
        return image
    is_bicubic = plan.preprocessing.interpolation == "bicubic"
    resample = Image.Resampling.BICUBIC if is_bicubic else Image.Resampling.BILINEAR
    height, width = resize.fit((image.height, image.width))
    resized = image.resize((width, height), resample)
    return _pad(resized, resize.size) if isinstance(resize, Letterbox) else resized


def _pad(image: Image.Image, size: Size) -> Image.Image:
    height, width = size
    fill = PAD if image.mode == "L" else (PAD, PAD, PAD)
    canvas = Image.new(image.mode, (width, height), fill)
    canvas.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
    return canvas


def _crop(image: Image.Image, size: Size, label: str) -> Image.Image:
    height, width = size
    left, top = (image.width - width) // 2, (image.height - height) // 2
    if left < 0 or top < 0:
        raise DataError(
            f"{label} has {image.height}x{image.width} pixels (height x width) when it is to "
            f"be cropped to {height}x{width}: give a --resize that covers the crop"
        )
    return image.crop((left, top, left + width, top + height))


def _normalize(pixels: NDArray[np.uint8], plan: ImagePlan) -> NDArray[np.float32]:
    preprocessing = plan.preprocessing
    values = pixels.astype(np.float32)
    # Training code divides by 255; 1/255 has no exact float, and multiplying by it differs.
    values /= np.float32(1 / preprocessing.scale)
    if preprocessing.mean is not None:
        values -= np.asarray(preprocessing.mean, np.float32)
    if preprocessing.std is not None:
        values /= np.asarray(preprocessing.std, np.float32)
    return values
