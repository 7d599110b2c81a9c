from __future__ import annotations

import importlib.util
import operator
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from lowbit.data import PREPROCESSINGS, InputInfo, Preprocessing, open_data
from lowbit.data.arrays import Table
from lowbit.data.images import (
    AHEAD,
    ImagePlan,
    ImageSource,
    open_image_folder,
    open_pixel_rows,
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
    ("inputs", "wish", "message"),
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
    inputs: list[InputInfo], wish: Preprocessing, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan_images(inputs, wish)


def test_plan_can_be_read() -> None:
    named = plan_images(image_input_of((1, 3, 224, 224)), PREPROCESSINGS["caffe"])
    raw = plan_images(image_input_of((1, 8, 8, 1), np.uint8), Preprocessing())

    assert str(named) == (
        "shorter side resized to 256, cropped to 224x224 (bicubic), BGR NCHW, scale 1, "
        "mean 123.68,116.779,103.939"
    )
    assert str(raw) == "resized to 8x8 (bicubic), gray NHWC"


def float_plan(*shape: int | None, wish: Preprocessing | None = None) -> ImagePlan:
    return plan_images([InputInfo("x", np.dtype(np.float32), shape)], wish or Preprocessing())


def numbered(
    count: int, load: Callable[[int], np.ndarray], batch: int | None = None
) -> ImageSource:
    labels = [f"image {index}" for index in range(count)]
    return ImageSource(plan=float_plan(batch, 3, 2, 2), labels=labels, load=load, origin="images")


def value(index: int) -> np.ndarray:
    return np.full((3, 2, 2), index + 1, np.float32)


def test_order_is_kept_however_long_each_image_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowbit.data.images.cpu_count", lambda: 2)
    later = threading.Event()

    def load(index: int) -> np.ndarray:
        # The first image is ready only after the second one.
        if index == 0:
            assert later.wait(60)
        if index == 1:
            later.set()
        return value(index)

    got = [np.asarray(feed).flat[0] for _, feed in numbered(20, load)]

    assert got == list(range(1, 21))


@pytest.mark.parametrize(("processors", "ahead"), [(1, 1), (2, 2), (64, AHEAD)])
def test_decoding_runs_only_a_few_images_ahead(
    monkeypatch: pytest.MonkeyPatch, processors: int, ahead: int
) -> None:
    monkeypatch.setattr("lowbit.data.images.cpu_count", lambda: processors)
    loaded = []

    def load(index: int) -> np.ndarray:
        loaded.append(index)
        return value(index)

    feeds = iter(numbered(100, load))
    next(feeds)
    feeds.close()  # type: ignore[attr-defined]

    assert len(loaded) <= 1 + ahead


def test_stopping_early_leaves_no_threads() -> None:
    before = set(threading.enumerate())
    feeds = iter(numbered(100, value))

    next(feeds)
    feeds.close()  # type: ignore[attr-defined]

    assert set(threading.enumerate()) <= before


def test_only_the_images_of_the_feeds_read_are_decoded() -> None:
    loaded = []

    def load(index: int) -> np.ndarray:
        loaded.append(index)
        return value(index)

    source = numbered(12, load, batch=2)
    feeds = [np.asarray(feed) for _, feed in source.read([1, 4])]

    assert sorted(loaded) == [2, 3, 8, 9]
    assert [feed[:, 0, 0, 0].tolist() for feed in feeds] == [[3, 4], [9, 10]]


def test_error_of_a_image_comes_in_its_turn() -> None:
    def load(index: int) -> np.ndarray:
        if index == 3:
            raise DataError("image 3 is broken")
        return value(index)

    feeds = iter(numbered(10, load))
    assert [next(feeds)[0] for _ in range(3)] == ["image 0", "image 1", "image 2"]
    with pytest.raises(DataError, match="image 3 is broken"):
        next(feeds)


def test_fixed_batch_groups_images_and_drops_the_rest() -> None:
    source = numbered(7, value, batch=3)

    got = [(label, np.asarray(feed)) for label, feed in source]

    assert source.count() == 2
    assert got[0][0] == "image 0 to image 2"
    assert [feed[:, 0, 0, 0].tolist() for _, feed in got] == [[1, 2, 3], [4, 5, 6]]


def test_fewer_images_than_the_batch_are_refused() -> None:
    with pytest.raises(DataError, match="2 images, but the model fixes the batch at 3"):
        numbered(2, value, batch=3)


def test_images_of_different_sizes_in_a_batch_are_refused() -> None:
    source = numbered(2, lambda index: np.ones((3, 2 + index, 2), np.float32), batch=2)

    with pytest.raises(DataError, match=r"different sizes.*--crop"):
        list(source)


def test_limit_takes_images_evenly_spaced(
    tmp_path: Path, save_image: Callable[..., np.ndarray]
) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(9)]
    for path in paths:
        save_image(path)

    source = open_image_folder(tmp_path, paths, float_plan(1, 3, 8, 8), 3)

    assert [label for label, _ in source] == ["image 0.png", "image 3.png", "image 6.png"]
    assert source.describe().startswith(f"3 images from folder {tmp_path} (evenly spaced over 9)")


def test_pixel_rows_are_rendered_like_images() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), dtype=np.uint8)
    table = Table(arrays={"x": rows}, origin="an array")

    source = open_pixel_rows(table, float_plan(1, 3, 4, 6), 2)

    feeds = [np.asarray(feed) for _, feed in source]
    np.testing.assert_array_equal(
        feeds, (rows[:2].astype(np.float32) / 255).transpose(0, 3, 1, 2)[:, None]
    )
    assert "2 images from an array" in source.describe()


@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (2, 3), (1, 2, 3, 4, 3)])
def test_rows_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    table = Table(arrays={"x": np.zeros(shape, np.uint8)}, origin="a.npz")

    with pytest.raises(DataError, match=r"a\.npz: uint8 array of shape .* holds no images"):
        open_pixel_rows(table, float_plan(1, 3, 4, 6), None)


def test_input_without_a_batch_axis_gets_one_image(
    tmp_path: Path, save_image: Callable[..., np.ndarray]
) -> None:
    save_image(tmp_path / "a.png")

    feeds = list(open_data(tmp_path, [InputInfo("x", np.dtype(np.float16), (3, 8, 8))]))

    assert feeds[0]["x"].shape == (3, 8, 8)
    assert feeds[0]["x"].dtype == np.float16


def test_sizes_may_vary_when_the_model_leaves_them_open(
    tmp_path: Path, save_image: Callable[..., np.ndarray]
) -> None:
    save_image(tmp_path / "a.png", 8, 16)
    save_image(tmp_path / "b.png", 16, 8)

    info = InputInfo("x", np.dtype(np.float32), (None, 3, None, None))
    feeds = list(open_data(tmp_path, [info], preprocessing=Preprocessing(resize=4)))

    assert [feed["x"].shape for feed in feeds] == [(1, 3, 4, 8), (1, 3, 8, 4)]


PIXELS = np.random.default_rng(3).integers(0, 256, (6, 10, 3), dtype=np.uint8)


def render_plan(wish: Preprocessing, *shape: int | None, dtype: type = np.float32) -> ImagePlan:
    return plan_images([InputInfo("x", np.dtype(dtype), shape)], wish)


def test_default_only_divides_by_255_when_the_size_fits() -> None:
    got = render_pixels(PIXELS, render_plan(Preprocessing(), 1, 3, 6, 10), "p")

    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, (PIXELS.astype(np.float32) / 255).transpose(2, 0, 1))


def test_mean_and_std_are_in_rgb_order_whatever_the_channel_order() -> None:
    wish = Preprocessing(mean=(1, 2, 3), std=(2, 4, 8), scale=1.0, channel_order="BGR")

    got = render_pixels(PIXELS, render_plan(wish, 1, 6, 10, 3), "p")

    red, green, blue = np.moveaxis(PIXELS.astype(np.float64), -1, 0)
    expected = np.stack([(blue - 3) / 8, (green - 2) / 4, (red - 1) / 2], axis=-1)
    np.testing.assert_array_equal(got, expected)


def test_crop_is_from_the_centre() -> None:
    wish = Preprocessing(crop=(2, 4), scale=1.0, layout="NHWC")

    got = render_pixels(PIXELS, render_plan(wish, None, None, None, 3), "p")

    np.testing.assert_array_equal(got, PIXELS[2:4, 3:7])


def test_letterbox_pads_with_114_around_the_whole_image() -> None:
    wish = Preprocessing(letterbox=True, resize=10, scale=1.0, layout="NHWC")

    got = render_pixels(PIXELS, render_plan(wish, 1, 10, 10, 3), "p")

    np.testing.assert_array_equal(got[2:8], PIXELS)
    assert (got[:2] == 114).all()
    assert (got[8:] == 114).all()


def test_gray_letterbox_pads_too() -> None:
    wish = Preprocessing(letterbox=True, scale=1.0)

    got = render_pixels(PIXELS, render_plan(wish, 1, 1, 10, 10), "p")

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
    wish = Preprocessing(scale=1.0, interpolation=name)  # type: ignore[arg-type]

    got = render_pixels(PIXELS, render_plan(wish, 1, 12, 20, 3), "p")

    expected = Image.fromarray(PIXELS).resize((20, 12), Image.Resampling[name.upper()])
    np.testing.assert_array_equal(got, np.asarray(expected))


def test_shorter_side_is_resized_then_cropped() -> None:
    wish = Preprocessing(scale=1.0, resize=12, crop=8)

    got = render_pixels(PIXELS, render_plan(wish, 1, 8, 8, 3), "p")

    whole = np.asarray(Image.fromarray(PIXELS).resize((20, 12), Image.Resampling.BICUBIC))
    np.testing.assert_array_equal(got, whole[2:10, 6:14])


def test_image_smaller_than_the_crop_is_named() -> None:
    wish = Preprocessing(crop=8, layout="NHWC")

    with pytest.raises(DataError, match=r"row 5 has 6x10 pixels .* cropped to 8x8.*--resize"):
        render_pixels(PIXELS, render_plan(wish, 1, None, None, 3), "row 5")


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
    wish = render_plan(PREPROCESSINGS[name], 1, 3, size, size)
    assert len(paths) > 10

    for path in paths:
        with Image.open(path) as image:
            expected = reference(assets)(image)
        np.testing.assert_array_equal(render_file(path, wish), expected, err_msg=str(path))
