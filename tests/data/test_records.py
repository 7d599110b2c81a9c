"""WebDataset and Parquet shards, written by the standard library and by pyarrow."""

from __future__ import annotations

import io
import pathlib
import pickle
import sys
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowbit.data import InputInfo, open_data
from lowbit.data.records import expand
from lowbit.errors import DataError

_X = InputInfo("x", np.dtype(np.float32), ("batch", 4))
_ROWS = np.arange(40, dtype=np.float32).reshape(10, 4) + 1


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def write_tar(path: pathlib.Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def shards(tmp_path: pathlib.Path) -> pathlib.Path:
    for shard in range(2):
        rows = range(shard * 5, shard * 5 + 5)
        files = {}
        for i in rows:
            files |= {f"{i:03}.npy": _npy(_ROWS[i]), f"{i:03}.cls": str(i).encode()}
        write_tar(tmp_path / f"train-{shard:02}.tar", files)
    return tmp_path


def _values(data) -> np.ndarray:
    return np.concatenate([feed["x"] for feed in data])


@pytest.mark.parametrize("kind", ["range", "folder", "list"])
def test_shards_are_one_dataset_in_their_order(shards, kind) -> None:
    source = {
        "range": str(shards / "train-{00..01}.tar"),
        "folder": shards,
        "list": [str(shards / f"train-{i:02}.tar") for i in range(2)],
    }[kind]

    data = open_data(source, [_X])

    np.testing.assert_array_equal(_values(data), _ROWS)
    assert data.names == tuple(f"{i:03}" for i in range(10))
    assert len(open_data(source, [_X], limit=3)) == 3


def test_a_part_of_shards_travels_as_a_description(shards) -> None:
    data = open_data(shards, [_X])

    sent = pickle.dumps(data.shard([1, 7]))
    part = pickle.loads(sent)  # noqa: S301 - our own

    assert [float(feed["x"][0]) for _, feed in part.read([0, 1])] == [5.0, 29.0]
    assert part.names == ("001", "007")
    # Neither the numbers nor the files themselves.
    assert len(sent) < 2000
    assert part.digest(1) == data.digest(7) != data.digest(6)


def test_images_in_shards_are_prepared_as_files_are(tmp_path, save_image, image_input) -> None:
    (tmp_path / "pics").mkdir()
    files = {}
    for i in range(3):
        save_image(tmp_path / "pics" / f"{i}.png", seed=i)
        files[f"{i}.png"] = (tmp_path / "pics" / f"{i}.png").read_bytes()
    write_tar(tmp_path / "a.tar", files)
    images = pa.array([{"bytes": data, "path": name} for name, data in files.items()])
    pq.write_table(pa.table({"image": images, "label": [1, 2, 3]}), tmp_path / "a.parquet")
    want = [
        f["image"] for f in open_data(tmp_path / "pics", [image_input], preprocessing="imagenet")
    ]

    for name in ("a.tar", "a.parquet"):
        data = open_data(tmp_path / name, [image_input], preprocessing="imagenet")
        for feed, other in zip(data, want, strict=True):
            np.testing.assert_array_equal(feed["image"], other)


def test_rows_of_parquet_are_samples_and_lists_get_their_shape(tmp_path) -> None:
    inputs = [
        InputInfo("x", np.dtype(np.float32), (1, 2, 3)),
        InputInfo("ids", np.dtype(np.int64), ("n", "t")),
    ]
    x = np.random.default_rng(0).normal(size=(7, 6))
    table = pa.table({"x": list(x), "ids": [[i, i + 1] for i in range(7)], "note": ["n"] * 7})
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=3)

    data = open_data(tmp_path / "d.parquet", inputs)

    feeds = list(data)
    assert len(feeds) == 7
    for index, feed in enumerate(feeds):
        np.testing.assert_array_equal(feed["x"], x[index].reshape(1, 2, 3).astype(np.float32))
        np.testing.assert_array_equal(feed["ids"], [[index, index + 1]])
    part = pickle.loads(pickle.dumps(data.shard([4])))  # noqa: S301 - our own
    ((_, only),) = part.read([0])
    np.testing.assert_array_equal(only["ids"], [4, 5])


def test_several_inputs_are_fields_of_their_names(tmp_path, two_inputs) -> None:
    files = {}
    for i in range(2):
        files[f"{i}.a_b_0.npy"] = _npy(np.full(3, i + 1, np.float32))
        files[f"{i}.ids.npy"] = _npy(np.array([i, 7]))
    write_tar(tmp_path / "two.tar", files)

    feeds = list(open_data(tmp_path / "two.tar", two_inputs))

    np.testing.assert_array_equal(feeds[1]["a/b:0"], [[2, 2, 2]])
    np.testing.assert_array_equal(feeds[1]["ids"], [[1, 7]])


def test_ranges_are_written_out_with_their_zeros() -> None:
    assert expand(["s3://b/x-{08..11}.tar"]) == [f"s3://b/x-{i:02}.tar" for i in range(8, 12)]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"0.txt": b"hello"}, r"no field for input 'x'.*\(its fields: txt\)"),
        ({"0.npy": b"hello"}, "record 0 .* is no .npy"),
        ({}, "hold no sample"),
        ({"0.npy": _npy(_ROWS[0]), "1.cls": b"1"}, "record 1 .* has no 'npy', which others have"),
    ],
)
def test_what_is_wrong_with_a_shard_is_named(tmp_path, files, why) -> None:
    write_tar(tmp_path / "bad.tar", files)

    with pytest.raises(DataError, match=why):
        list(open_data(tmp_path / "bad.tar", [_X]))


def test_a_compressed_archive_and_a_broken_file_are_told(tmp_path) -> None:
    with tarfile.open(tmp_path / "packed.tar", "w:gz"):
        pass
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")

    with pytest.raises(DataError, match="unpack it if it is compressed"):
        open_data(tmp_path / "packed.tar", [_X])
    with pytest.raises(DataError, match="no Parquet file that can be read"):
        open_data(tmp_path / "broken.parquet", [_X])
    with pytest.raises(DataError, match=r"gone\.tar cannot be read"):
        open_data(tmp_path / "gone.tar", [_X])


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "d.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)

    with pytest.raises(DataError, match=r"pip install 'lowbit\[parquet\]'"):
        open_data(tmp_path / "d.parquet", [_X])
