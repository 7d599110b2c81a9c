from __future__ import annotations

import importlib.util
import operator
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from lowbit.data import PREPROCESSINGS, InputInfo, Preprocessing
from lowbit.data.images import PicturePlan, plan_pictures, render_file, render_pixels
from lowbit.errors import DataError

PIXELS = np.random.default_rng(3).integers(0, 256, (6, 10, 3), dtype=np.uint8)


def plan(wish: Preprocessing, *shape: int | None, dtype: type = np.float32) -> PicturePlan:
    return plan_pictures([InputInfo("x", np.dtype(dtype), shape)], wish)


def test_default_only_divides_by_255_when_the_size_fits() -> None:
    got = render_pixels(PIXELS, plan(Preprocessing(), 1, 3, 6, 10), "p")

    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, (PIXELS.astype(np.float32) / 255).transpose(2, 0, 1))


def test_mean_and_std_are_in_rgb_order_whatever_the_channel_order() -> None:
    wish = Preprocessing(mean=(1, 2, 3), std=(2, 4, 8), scale=1.0, channel_order="BGR")

    got = render_pixels(PIXELS, plan(wish, 1, 6, 10, 3), "p")

    red, green, blue = np.moveaxis(PIXELS.astype(np.float64), -1, 0)
    expected = np.stack([(blue - 3) / 8, (green - 2) / 4, (red - 1) / 2], axis=-1)
    np.testing.assert_array_equal(got, expected)


def test_crop_is_from_the_centre() -> None:
    wish = Preprocessing(crop=(2, 4), scale=1.0, layout="NHWC")

    got = render_pixels(PIXELS, plan(wish, None, None, None, 3), "p")

    np.testing.assert_array_equal(got, PIXELS[2:4, 3:7])


def test_letterbox_pads_with_114_around_the_whole_picture() -> None:
    wish = Preprocessing(letterbox=True, resize=10, scale=1.0, layout="NHWC")

    got = render_pixels(PIXELS, plan(wish, 1, 10, 10, 3), "p")

    np.testing.assert_array_equal(got[2:8], PIXELS)
    assert (got[:2] == 114).all()
    assert (got[8:] == 114).all()


def test_gray_letterbox_pads_too() -> None:
    wish = Preprocessing(letterbox=True, scale=1.0)

    got = render_pixels(PIXELS, plan(wish, 1, 1, 10, 10), "p")

    assert got.shape == (1, 10, 10)
    assert (got[:, :2] == 114).all()


def test_model_of_one_channel_gets_gray() -> None:
    got = render_pixels(PIXELS, plan(Preprocessing(scale=1.0), 1, 1, 6, 10), "p")

    luma = PIXELS @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(got[0], luma, atol=1)


@pytest.mark.parametrize("pixels", [PIXELS[..., 0], PIXELS[..., :1]])
def test_gray_pixels_fill_three_channels(pixels: np.ndarray) -> None:
    got = render_pixels(pixels, plan(Preprocessing(scale=1.0), 1, 3, 6, 10), "p")

    np.testing.assert_array_equal(got, np.stack([PIXELS[..., 0]] * 3))


def test_uint8_input_gets_the_pixels_themselves() -> None:
    got = render_pixels(PIXELS, plan(Preprocessing(), 1, 6, 10, 3, dtype=np.uint8), "p")

    assert got.dtype == np.uint8
    np.testing.assert_array_equal(got, PIXELS)


@pytest.mark.parametrize("name", ["bicubic", "bilinear"])
def test_resize_uses_the_interpolation(name: str) -> None:
    wish = Preprocessing(scale=1.0, interpolation=name)  # type: ignore[arg-type]

    got = render_pixels(PIXELS, plan(wish, 1, 12, 20, 3), "p")

    expected = Image.fromarray(PIXELS).resize((20, 12), Image.Resampling[name.upper()])
    np.testing.assert_array_equal(got, np.asarray(expected))


def test_shorter_side_is_resized_then_cropped() -> None:
    wish = Preprocessing(scale=1.0, resize=12, crop=8)

    got = render_pixels(PIXELS, plan(wish, 1, 8, 8, 3), "p")

    whole = np.asarray(Image.fromarray(PIXELS).resize((20, 12), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(got, whole[2:10, 6:14])


def test_picture_smaller_than_the_crop_is_named() -> None:
    wish = Preprocessing(crop=8, layout="NHWC")

    with pytest.raises(DataError, match=r"row 5 has 6x10 pixels .* cropped to 8x8.*--resize"):
        render_pixels(PIXELS, plan(wish, 1, None, None, 3), "row 5")


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".webp", ".jpg"])
def test_files_of_every_kind_are_decoded(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(PIXELS).save(path, **({"lossless": True} if suffix == ".webp" else {}))

    got = render_file(path, plan(Preprocessing(scale=1.0), 1, 6, 10, 3))

    expected = np.asarray(Image.open(path)) if suffix == ".jpg" else PIXELS
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "CMYK"])
def test_files_of_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    Image.fromarray(PIXELS).convert(mode).save(path)

    assert render_file(path, plan(Preprocessing(), 1, 3, 6, 10)).shape == (3, 6, 10)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.6])
def test_damaged_file_is_named(tmp_path: Path, suffix: str, keep: float) -> None:
    path = tmp_path / f"broken{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])

    with pytest.raises(DataError, match=rf"picture .*broken\{suffix} cannot be read"):
        render_file(path, plan(Preprocessing(), 1, 3, 8, 8))


@pytest.fixture(scope="module")
def assets() -> ModuleType:
    folder = os.environ.get("LOWBIT_ASSETS")
    if not folder:
        pytest.skip("LOWBIT_ASSETS names no folder with assets.py and its pictures")
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
        ("yolo", lambda module: lambda picture: module.letterbox(picture)[0], 640),
    ],
)
def test_named_preprocessings_equal_the_reference_on_real_pictures(
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
    wish = plan(PREPROCESSINGS[name], 1, 3, size, size)
    assert len(paths) > 10

    for path in paths:
        with Image.open(path) as picture:
            expected = reference(assets)(picture)
        np.testing.assert_array_equal(render_file(path, wish), expected, err_msg=str(path))
