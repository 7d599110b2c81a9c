from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowbit.data import InputInfo, Preprocessing, open_data
from lowbit.data.arrays import Table
from lowbit.data.images import (
    AHEAD,
    PicturePlan,
    PictureSource,
    open_picture_folder,
    open_pixel_rows,
    plan_pictures,
)
from lowbit.errors import DataError


def plan(*shape: int | None, wish: Preprocessing | None = None) -> PicturePlan:
    return plan_pictures([InputInfo("x", np.dtype(np.float32), shape)], wish or Preprocessing())


def numbered(
    count: int, load: Callable[[int], np.ndarray], batch: int | None = None
) -> PictureSource:
    labels = [f"picture {index}" for index in range(count)]
    return PictureSource(plan=plan(batch, 3, 2, 2), labels=labels, load=load, origin="images")


def value(index: int) -> np.ndarray:
    return np.full((3, 2, 2), index + 1, np.float32)


def test_order_is_kept_however_long_each_picture_takes() -> None:
    def load(index: int) -> np.ndarray:
        time.sleep(0.02 if index % 3 == 0 else 0)
        return value(index)

    got = [np.asarray(feed).flat[0] for _, feed in numbered(20, load)]

    assert got == list(range(1, 21))


def test_decoding_runs_only_a_few_pictures_ahead() -> None:
    loaded = []

    def load(index: int) -> np.ndarray:
        loaded.append(index)
        return value(index)

    feeds = iter(numbered(100, load))
    next(feeds)
    time.sleep(0.1)

    assert len(loaded) <= AHEAD


def test_stopping_early_leaves_no_threads() -> None:
    before = threading.active_count()
    feeds = iter(numbered(100, value))

    next(feeds)
    feeds.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)

    assert threading.active_count() <= before


def test_error_of_a_picture_comes_in_its_turn() -> None:
    def load(index: int) -> np.ndarray:
        if index == 3:
            raise DataError("picture 3 is broken")
        return value(index)

    feeds = iter(numbered(10, load))
    assert [next(feeds)[0] for _ in range(3)] == ["picture 0", "picture 1", "picture 2"]
    with pytest.raises(DataError, match="picture 3 is broken"):
        next(feeds)


def test_fixed_batch_groups_pictures_and_drops_the_rest() -> None:
    source = numbered(7, value, batch=3)

    got = [(label, np.asarray(feed)) for label, feed in source]

    assert source.count() == 2
    assert got[0][0] == "picture 0 to picture 2"
    assert [feed[:, 0, 0, 0].tolist() for _, feed in got] == [[1, 2, 3], [4, 5, 6]]


def test_fewer_pictures_than_the_batch_are_refused() -> None:
    with pytest.raises(DataError, match="2 pictures, but the model fixes the batch at 3"):
        numbered(2, value, batch=3)


def test_pictures_of_different_sizes_in_a_batch_are_refused() -> None:
    source = numbered(2, lambda index: np.ones((3, 2 + index, 2), np.float32), batch=2)

    with pytest.raises(DataError, match=r"different sizes.*--crop"):
        list(source)


def test_limit_takes_pictures_evenly_spaced(
    tmp_path: Path, save_picture: Callable[..., np.ndarray]
) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(9)]
    for path in paths:
        save_picture(path)

    source = open_picture_folder(tmp_path, paths, plan(1, 3, 8, 8), 3)

    assert [label for label, _ in source] == ["picture 0.png", "picture 3.png", "picture 6.png"]
    assert source.describe().startswith(f"3 images from folder {tmp_path} (evenly spaced over 9)")


def test_pixel_rows_are_rendered_like_pictures() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), dtype=np.uint8)
    table = Table(arrays={"x": rows}, origin="an array")

    source = open_pixel_rows(table, plan(1, 3, 4, 6), 2)

    feeds = [np.asarray(feed) for _, feed in source]
    np.testing.assert_array_equal(
        feeds, (rows[:2].astype(np.float32) / 255).transpose(0, 3, 1, 2)[:, None]
    )
    assert "2 pictures from an array" in source.describe()


@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (2, 3), (1, 2, 3, 4, 3)])
def test_rows_that_are_no_pictures_are_refused(shape: tuple[int, ...]) -> None:
    table = Table(arrays={"x": np.zeros(shape, np.uint8)}, origin="a.npz")

    with pytest.raises(DataError, match=r"a\.npz: uint8 array of shape .* holds no pictures"):
        open_pixel_rows(table, plan(1, 3, 4, 6), None)


def test_input_without_a_batch_axis_gets_one_picture(
    tmp_path: Path, save_picture: Callable[..., np.ndarray]
) -> None:
    save_picture(tmp_path / "a.png")

    feeds = list(open_data(tmp_path, [InputInfo("x", np.dtype(np.float16), (3, 8, 8))]))

    assert feeds[0]["x"].shape == (3, 8, 8)
    assert feeds[0]["x"].dtype == np.float16


def test_sizes_may_vary_when_the_model_leaves_them_open(
    tmp_path: Path, save_picture: Callable[..., np.ndarray]
) -> None:
    save_picture(tmp_path / "a.png", 8, 16)
    save_picture(tmp_path / "b.png", 16, 8)

    info = InputInfo("x", np.dtype(np.float32), (None, 3, None, None))
    feeds = list(open_data(tmp_path, [info], preprocessing=Preprocessing(resize=4)))

    assert [feed["x"].shape for feed in feeds] == [(1, 3, 4, 8), (1, 3, 8, 4)]
