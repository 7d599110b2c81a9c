"""Data at URLs of fsspec: in memory, and inside a .zip."""

from __future__ import annotations

import io
import pickle
import zipfile

import fsspec
import numpy as np
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.data import InputInfo, open_data
from lowbit.data.remote import list_files, local_path, read_bytes
from lowbit.errors import ConfigError, DataError

_X = InputInfo("x", np.dtype(np.float32), ("batch", 4))
_ROWS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


@pytest.fixture
def memory():
    """An empty place in memory."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_a_folder_of_npy_files_at_a_url(memory) -> None:
    for i, row in enumerate(_ROWS):
        memory.pipe_file(f"/calib/{i}.npy", _npy(row))
    memory.pipe_file("/calib/.hidden.npy", b"no")

    data = open_data("memory://calib/", [_X])

    np.testing.assert_array_equal(np.concatenate([f["x"] for f in data]), _ROWS)
    assert data.names == ("0.npy", "1.npy", "2.npy")
    part = pickle.loads(pickle.dumps(data.shard([2])))  # noqa: S301 - our own
    assert [float(feed["x"][0]) for _, feed in part.read([0])] == [9.0]


def test_images_at_a_url_are_those_of_the_folder(memory, tmp_path, save_image, image_input) -> None:
    for i in range(3):
        save_image(tmp_path / f"{i}.png", seed=i)
        memory.pipe_file(f"/pics/a/{i}.png", (tmp_path / f"{i}.png").read_bytes())

    want, got = (list(open_data(d, [image_input])) for d in (tmp_path, "memory://pics"))

    for feed, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(feed["image"], other["image"])


def test_an_archive_of_arrays_at_a_url(memory) -> None:
    file = io.BytesIO()
    np.savez(file, x=_ROWS)
    memory.pipe_file("/b/data.npz", file.getvalue())

    data = open_data("memory://b/data.npz", [_X])

    np.testing.assert_array_equal(np.concatenate([f["x"] for f in data]), _ROWS)
    # Another process has the URL, not the copy of this one.
    sent = pickle.dumps(data.shard([1]))
    assert b"memory://b/data.npz" in sent
    ((_, feed),) = pickle.loads(sent).read([0])  # noqa: S301 - our own
    np.testing.assert_array_equal(feed["x"], _ROWS[1:2])


def test_files_inside_a_zip(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for i, row in enumerate(_ROWS):
            archive.writestr(f"set/{i}.npy", _npy(row))
    url = f"zip://set::file://{tmp_path}/d.zip"

    assert list_files(url) == [f"zip://set/{i}.npy::file://{tmp_path}/d.zip" for i in range(3)]
    data = open_data(url, [_X])

    np.testing.assert_array_equal(np.concatenate([f["x"] for f in data]), _ROWS)


def test_a_model_is_quantized_on_data_at_a_url(memory) -> None:
    feeds = small_feeds(6, 8)
    for i, feed in enumerate(feeds):
        memory.pipe_file(f"/s/{i}.npy", _npy(feed["input"]))

    there = lowbit.quantize(small_cnn(8), data="memory://s", preset="A8W8")
    here = lowbit.quantize(small_cnn(8), data=feeds, preset="A8W8")

    assert there.model.graph == here.model.graph
    assert "memory://s" in there.report.data


def test_a_local_file_stays_where_it_is(tmp_path) -> None:
    (tmp_path / "f").write_bytes(b"abc")

    assert local_path(str(tmp_path / "f")) == tmp_path / "f"
    assert read_bytes(str(tmp_path / "f")) == b"abc"


@pytest.mark.usefixtures("memory")
def test_what_is_not_there_is_named() -> None:
    with pytest.raises(DataError, match=r"memory://nothing"):
        open_data("memory://nothing", [_X])
    with pytest.raises(ConfigError, match="cannot open nowhere://x"):
        open_data("nowhere://x", [_X])
