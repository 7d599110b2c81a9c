from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lowbit.data import InputInfo, Preprocessing, open_data
from lowbit.data.arrays import Table
from lowbit.data.image_sources import AHEAD, ImageSource, open_image_folder, open_pixel_rows
from lowbit.data.images import ImagePlan, plan_images
from lowbit.errors import DataError


def float_plan(*shape: int | None, preprocessing: Preprocessing | None = None) -> ImagePlan:
    return plan_images(
        [InputInfo("x", np.dtype(np.float32), shape)], preprocessing or Preprocessing()
    )


@dataclasses.dataclass
class _Made:
    """Images that a function makes."""

    load: Callable[[int], np.ndarray]


def numbered(
    count: int, load: Callable[[int], np.ndarray], batch: int | None = None
) -> ImageSource:
    labels = [f"image {index}" for index in range(count)]
    plan = float_plan(batch, 3, 2, 2)
    return ImageSource(plan=plan, labels=labels, images=_Made(load), origin="images")


def value(index: int) -> np.ndarray:
    return np.full((3, 2, 2), index + 1, np.float32)


def test_order_is_kept_however_long_each_image_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowbit.data.image_sources.cpu_count", lambda: 2)
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
    monkeypatch.setattr("lowbit.data.image_sources.cpu_count", lambda: processors)
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
    one = open_image_folder(tmp_path, paths, float_plan(1, 3, 8, 8), 1)
    assert one.describe().startswith(f"1 image from folder {tmp_path} (evenly spaced over 9)")


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


def test_a_shard_is_described_by_its_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for index in range(7):
        pixels = rng.integers(0, 256, (9, 8, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    inputs = [InputInfo("x", np.dtype(np.float32), (2, 3, 6, 6))]
    data = open_data(tmp_path, inputs)

    packed = pickle.dumps(data.shard([0, 2]))
    got = list(pickle.loads(packed))  # noqa: S301 - written a line above

    assert len(packed) < 4000
    want = list(data.select([0, 2]))
    assert [label for label, _ in got] == [
        "image 0.png to image 1.png",
        "image 4.png to image 5.png",
    ]
    for (_, feed), feeds in zip(got, want, strict=True):
        np.testing.assert_array_equal(feed, feeds["x"])


def test_the_digest_of_an_image_depends_on_its_file_and_on_what_is_done_to_it(
    tmp_path: Path,
) -> None:
    for index in range(2):
        Image.new("RGB", (8, 8), (index, 0, 0)).save(tmp_path / f"{index}.png")
    inputs = [InputInfo("x", np.dtype(np.float32), (1, 3, 8, 8))]

    plain, scaled = (
        open_data(tmp_path, inputs, preprocessing=Preprocessing(scale=s)) for s in (1, 2)
    )

    digests = [data.digest(index) for data in (plain, scaled) for index in (0, 1)]
    assert len(set(digests)) == 4
    assert plain.digest(0) == digests[0]
