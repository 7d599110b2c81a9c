"""Pixels: one picture, decoded and turned into input values as its plan says.

Imports Pillow, so that only those who have pictures wait for it.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lowbit.data.framing import Letterbox, Size
from lowbit.data.picture_plan import PicturePlan
from lowbit.errors import DataError

PAD = 114
"""Gray that letterboxed pictures are padded with, as YOLO was trained."""


def render_file(path: Path, plan: PicturePlan) -> NDArray[Any]:
    """Return the values of the picture in a file, without a batch axis."""
    try:
        with Image.open(path) as picture:
            decoded = picture.convert(_mode(plan))
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
        raise DataError(
            f"picture {path} cannot be read ({error}): replace or delete the file"
        ) from error
    return _render(decoded, plan, f"picture {path}")


def render_pixels(pixels: NDArray[np.uint8], plan: PicturePlan, label: str) -> NDArray[Any]:
    """Return the values of a picture given as ``[H, W]`` or ``[H, W, C]`` pixels in RGB order."""
    is_gray = pixels.ndim == 3 and pixels.shape[-1] == 1
    picture = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if is_gray else pixels))
    return _render(picture.convert(_mode(plan)), plan, label)


def _mode(plan: PicturePlan) -> str:
    return "RGB" if plan.channels == 3 else "L"


def _render(picture: Image.Image, plan: PicturePlan, label: str) -> NDArray[Any]:
    picture = _resize(picture, plan)
    if plan.framing.crop is not None:
        picture = _crop(picture, plan.framing.crop, label)
    pixels = np.asarray(picture).reshape(picture.height, picture.width, plan.channels)
    values = pixels if plan.takes_raw_pixels else _normalize(pixels, plan)
    if plan.preprocessing.channel_order == "BGR":
        values = values[..., ::-1]
    if not plan.is_channels_last:
        values = values.transpose(2, 0, 1)
    return np.ascontiguousarray(values)


def _resize(picture: Image.Image, plan: PicturePlan) -> Image.Image:
    resize = plan.framing.resize
    if resize is None:
        return picture
    is_bicubic = plan.preprocessing.interpolation == "bicubic"
    resample = Image.Resampling.BICUBIC if is_bicubic else Image.Resampling.BILINEAR
    height, width = resize.fit((picture.height, picture.width))
    resized = picture.resize((width, height), resample)
    return _pad(resized, resize.size) if isinstance(resize, Letterbox) else resized


def _pad(picture: Image.Image, size: Size) -> Image.Image:
    height, width = size
    fill = PAD if picture.mode == "L" else (PAD, PAD, PAD)
    canvas = Image.new(picture.mode, (width, height), fill)
    canvas.paste(picture, ((width - picture.width) // 2, (height - picture.height) // 2))
    return canvas


def _crop(picture: Image.Image, size: Size, label: str) -> Image.Image:
    height, width = size
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    if left < 0 or top < 0:
        raise DataError(
            f"{label} has {picture.height}x{picture.width} pixels (height x width) when it is to "
            f"be cropped to {height}x{width}: give a --resize that covers the crop"
        )
    return picture.crop((left, top, left + width, top + height))


def _normalize(pixels: NDArray[np.uint8], plan: PicturePlan) -> NDArray[np.float32]:
    wish = plan.preprocessing
    values = pixels.astype(np.float32)
    # Training code divides by 255; 1/255 has no exact float, and multiplying by it differs.
    values /= np.float32(1 / wish.scale)
    if wish.mean is not None:
        values -= np.asarray(wish.mean, np.float32)
    if wish.std is not None:
        values /= np.asarray(wish.std, np.float32)
    return values
