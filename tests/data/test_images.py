from __future__ import annotations

import importlib.util
import operator
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from lowbit.data import PREPROCESSINGS, InputInfo, Preprocessing
from lowbit.data.images import (
    ImagePlan,
    _decoded,
    plan_images,
    render_file,
    render_pixels,
)
from lowbit.errors import DataError

Shape = tuple[int | str | None, ...] | None


def image_input_of(shape: Shape, dtype: type = np.float32) -> list[InputInfo]:
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
    plan = plan_images(image_input_of(shape), Preprocessing(layout=layout))  # type: ignore[arg-type]

    assert (plan.channels, plan.is_channels_last) == (channels, is_last)
    assert (plan.batch, plan.has_batch_axis) == (batch, has_batch)
    assert plan.framing.resize is not None
    assert plan.framing.resize.size == (8, 9)


def test_unknown_rank_needs_a_layout_and_a_size() -> None:
    plan = plan_images(image_input_of(None), Preprocessing(layout="NHWC", crop=5))

    assert plan.has_batch_axis
    assert plan.is_channels_last


@pytest.mark.parametrize(
    ("inputs", "preprocessing", "message"),
    [
        (image_input_of((1, 3, 8, 8)) * 2, Preprocessing(), r"one input, this one has 2.*\.npz"),
        (
            image_input_of((1, 8)),
            Preprocessing(),
            r"4 \(or 3\) dimensions, 'x' has shape \[1, 8\].*\.npz",
        ),
        (
            image_input_of((1, 3, 8, 8), np.int64),
            Preprocessing(),
            r"float or uint8 input, 'x' is int64",
        ),
        (image_input_of((1, None, 8, 8)), Preprocessing(), r"no axis of 1 or 3 channels.*--layout"),
        (image_input_of(None), Preprocessing(crop=4), r"\[any shape\].*--layout"),
        (
            image_input_of((1, 4, 8, 8)),
            Preprocessing(layout="NCHW"),
            r"takes 4 channels, images have 1 or 3",
        ),
        (image_input_of((1, 3, "h", "w")), Preprocessing(), r"--resize"),
        (
            image_input_of((1, 1, 224, 224)),
            PREPROCESSINGS["imagenet"],
            r"mean has 3 values, input 'x' has 1",
        ),
        (
            image_input_of((1, 3, 8, 8), np.uint8),
            Preprocessing(mean=(1.0,)),
            r"uint8 .* mean 1 cannot",
        ),
        (
            image_input_of((1, 3, 8, 8), np.uint8),
            Preprocessing(std=(1.0,)),
            r"uint8 .* std 1 cannot",
        ),
    ],
)
def test_model_that_takes_no_images_is_refused(
    inputs: list[InputInfo], preprocessing: Preprocessing, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan_images(inputs, preprocessing)


def test_plan_can_be_read() -> None:
    named = plan_images(image_input_of((1, 3, 224, 224)), PREPROCESSINGS["caffe"])
    raw = plan_images(image_input_of((1, 8, 8, 1), np.uint8), Preprocessing())

    assert str(named) == (
        "shorter side resized to 256, cropped to 224x224 (bicubic), BGR NCHW, scale 1, "
        "mean 123.68,116.779,103.939"
    )
    assert str(raw) == "resized to 8x8 (bicubic), gray NHWC"


PIXELS = np.random.default_rng(3).integers(0, 256, (6, 10, 3), dtype=np.uint8)


def render_plan(
    preprocessing: Preprocessing, *shape: int | None, dtype: type = np.float32
) -> ImagePlan:
    return plan_images([InputInfo("x", np.dtype(dtype), shape)], preprocessing)


def test_default_only_divides_by_255_when_the_size_fits() -> None:
    got = render_pixels(PIXELS, render_plan(Preprocessing(), 1, 3, 6, 10), "p")

    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, (PIXELS.astype(np.float32) / 255).transpose(2, 0, 1))


def test_mean_and_std_are_in_rgb_order_whatever_the_channel_order() -> None:
    preprocessing = Preprocessing(mean=(1, 2, 3), std=(2, 4, 8), scale=1.0, channel_order="BGR")

    got = render_pixels(PIXELS, render_plan(preprocessing, 1, 6, 10, 3), "p")

    red, green, blue = np.moveaxis(PIXELS.astype(np.float64), -1, 0)
    expected = np.stack([(blue - 3) / 8, (green - 2) / 4, (red - 1) / 2], axis=-1)
    np.testing.assert_array_equal(got, expected)


def test_crop_is_from_the_centre() -> None:
    preprocessing = Preprocessing(crop=(2, 4), scale=1.0, layout="NHWC")

    got = render_pixels(PIXELS, render_plan(preprocessing, None, None, None, 3), "p")

    np.testing.assert_array_equal(got, PIXELS[2:4, 3:7])


def test_letterbox_pads_with_114_around_the_whole_image() -> None:
    preprocessing = Preprocessing(letterbox=True, resize=10, scale=1.0, layout="NHWC")

    got = render_pixels(PIXELS, render_plan(preprocessing, 1, 10, 10, 3), "p")

    np.testing.assert_array_equal(got[2:8], PIXELS)
    assert (got[:2] == 114).all()
    assert (got[8:] == 114).all()


def test_gray_letterbox_pads_too() -> None:
    preprocessing = Preprocessing(letterbox=True, scale=1.0)

    got = render_pixels(PIXELS, render_plan(preprocessing, 1, 1, 10, 10), "p")

    assert got.shape == (1, 10, 10)
    assert (got[:, :2] == 114).all()


def test_model_of_one_channel_gets_gray() -> None:
    got = render_pixels(PIXELS, render_plan(Preprocessing(scale=1.0), 1, 1, 6, 10), "p")

    luma = PIXELS @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(got[0], luma, atol=1)


@pytest.mark.parametrize("pixels", [PIXELS[..., 0], PIXELS[..., :1]])
def test_gray_pixels_fill_three_channels(pixels: np.ndarray) -> None:
    got = render_pixels(pixels, render_plan(Preprocessing(scale=1.0), 1, 3, 6, 10), "p")

    np.testing.assert_array_equal(got, np.stack([PIXELS[..., 0]] * 3))


def test_uint8_input_gets_the_pixels_themselves() -> None:
    got = render_pixels(PIXELS, render_plan(Preprocessing(), 1, 6, 10, 3, dtype=np.uint8), "p")

    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, PIXELS)


@pytest.mark.parametrize("name", ["bicubic", "bilinear"])
def test_resize_uses_the_interpolation(name: str) -> None:
    preprocessing = Preprocessing(scale=1.0, interpolation=name)  # type: ignore[arg-type]

    got = render_pixels(PIXELS, render_plan(preprocessing, 1, 12, 20, 3), "p")

    expected = Image.fromarray(PIXELS).resize((20, 12), Image.Resampling[name.upper()])
    np.testing.assert_array_equal(got, np.asarray(expected))


def test_shorter_side_is_resized_then_cropped() -> None:
    preprocessing = Preprocessing(scale=1.0, resize=12, crop=8)

    got = render_pixels(PIXELS, render_plan(preprocessing, 1, 8, 8, 3), "p")

    whole = np.asarray(Image.fromarray(PIXELS).resize((20, 12), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(got, whole[2:10, 6:14])


def test_image_smaller_than_the_crop_is_named() -> None:
    preprocessing = Preprocessing(crop=8, layout="NHWC")

    with pytest.raises(DataError, match=r"row 5 has 6x10 pixels .* cropped to 8x8.*--resize"):
        render_pixels(PIXELS, render_plan(preprocessing, 1, None, None, 3), "row 5")


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".jpg"])
def test_files_of_every_kind_are_decoded(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(PIXELS).save(path, **({"lossless": True} if suffix == ".webp" else {}))

    got = render_file(path, render_plan(Preprocessing(scale=1.0), 1, 6, 10, 3))

    expected = np.asarray(Image.open(path)) if suffix == ".jpg" else PIXELS
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK"])
def test_files_of_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.fromarray(PIXELS).convert(mode).save(path)

    assert render_file(path, render_plan(Preprocessing(), 1, 3, 6, 10)).shape == (3, 6, 10)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.6])
def test_damaged_file_is_named(tmp_path: Path, suffix: str, keep: float) -> None:
    path = tmp_path / f"broken{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])

    with pytest.raises(DataError, match=rf"image .*broken\{suffix} cannot be read"):
        render_file(path, render_plan(Preprocessing(), 1, 3, 8, 8))


@pytest.fixture(scope="module")
def assets() -> ModuleType:
    folder = os.environ.get("LOWBIT_ASSETS")
    if not folder:
        pytest.skip("LOWBIT_ASSETS names no folder with assets.py and its images")
    spec = importlib.util.spec_from_file_location("lowbit_assets", Path(folder) / "assets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "reference", "size"),
    [
        ("imagenet", operator.attrgetter("_torchvision"), 224),
        ("tensorflow", operator.attrgetter("_tensorflow"), 224),
        ("caffe", operator.attrgetter("_caffe"), 224),
        ("yolo", lambda module: lambda image: module.letterbox(image)[0], 640),
    ],
)
def test_named_preprocessings_equal_the_reference_on_real_images(
    assets: ModuleType,
    name: str,
    reference: Callable[[ModuleType], Callable[..., np.ndarray]],
    size: int,
) -> None:
    folder = Path(assets.ROOT)
    paths = (
        sorted(folder.glob("imagenet/calib/*.jpg"))[::50]
        + sorted(folder.glob("coco128/images/*"))[::16]
    )
    preprocessing = render_plan(PREPROCESSINGS[name], 1, 3, size, size)
    assert len(paths) > 10

    for path in paths:
        with Image.open(path) as image:
            expected = reference(assets)(image)
        np.testing.assert_array_equal(render_file(path, preprocessing), expected, err_msg=str(path))


def _png_of_16_bits(path: Path, pixels: np.ndarray) -> None:
    """Write a PNG of 16 bits a channel, which Pillow cannot."""
    height, width = pixels.shape[:2]
    kind = {2: 0, 3: {2: 4, 3: 2, 4: 6}.get(pixels.shape[-1])}[pixels.ndim]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)

    def part(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    parts = (part(b"IHDR", header), part(b"IDAT", zlib.compress(rows)), part(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def _pixels(path: Path, channels: int = 3) -> np.ndarray:
    """Return the pixels of an image before it is resized, height x width x channels."""
    with Image.open(path) as image:
        found = np.asarray(_decoded(image, "RGB" if channels == 3 else "L"))
    return found.reshape(*found.shape[:2], channels)


@pytest.mark.parametrize("channels", [None, 2, 3, 4])
@pytest.mark.parametrize("wanted", [1, 3])
def test_16_bits_are_scaled_to_8_and_not_clipped(tmp_path: Path, channels, wanted) -> None:
    gray = np.linspace(0, 65535, 16).astype(np.uint16).reshape(4, 4)
    pixels = gray if channels is None else np.stack([gray] * channels, axis=-1)
    _png_of_16_bits(tmp_path / "a.png", pixels)

    found = _pixels(tmp_path / "a.png", wanted)

    np.testing.assert_allclose(found[..., 0], gray / 257, atol=1)


@pytest.mark.filterwarnings("error")
def test_transparency_is_dropped_and_colours_stay(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([200, 10, 30, 1, 2, 3])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=bytes([0, 128]))

    np.testing.assert_array_equal(_pixels(tmp_path / "a.png"), [[[200, 10, 30], [1, 2, 3]]])


def test_inks_become_light(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=95)

    red = _pixels(tmp_path / "a.jpg").reshape(-1, 3).mean(axis=0)

    assert red[0] > 200
    assert red[1:].max() < 60


def test_images_are_turned_as_viewers_show_them(tmp_path: Path) -> None:
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    exif = Image.Exif()
    exif[274] = 6  # to be turned a quarter clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)

    np.testing.assert_array_equal(_pixels(tmp_path / "a.png", 1)[..., 0], np.rot90(pixels, -1))
