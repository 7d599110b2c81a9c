"""A folder of .npz files holds a sample in each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowbit.data.inputs import InputInfo
from lowbit.data.npz_folder import NpzFolderSource
from lowbit.data.opening import open_data
from lowbit.errors import ConfigError, DataError


def _save(folder: Path, count: int = 3) -> None:
    for index in range(count):
        arrays = {"a/b:0": np.full((1, 3), index, np.float32), "ids": np.full((1, 2), index)}
        np.savez(folder / f"{index}.npz", more=np.zeros(5), **arrays)


def test_each_file_is_a_sample_of_all_inputs(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    _save(tmp_path)

    data = open_data(tmp_path, two_inputs, limit=2)

    assert [list(feed) for feed in data] == [["a/b:0", "ids"]] * 2
    assert [feed["a/b:0"].tolist() for feed in data] == [[[0] * 3], [[1] * 3]]
    assert [feed["ids"].tolist() for feed in data] == [[[0] * 2], [[1] * 2]]
    assert data.description == f"2 samples from .npz files in folder {tmp_path}"


def test_arrays_without_names_are_taken_in_order(
    tmp_path: Path, two_inputs: list[InputInfo]
) -> None:
    np.savez(tmp_path / "0.npz", np.ones((1, 3), np.float32), np.full((1, 2), 7))

    (feed,) = open_data(tmp_path, two_inputs)

    assert feed["ids"].tolist() == [[7, 7]]


def test_a_missing_array_is_named(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    np.savez(tmp_path / "0.npz", **{"a/b:0": np.ones((1, 3), np.float32), "id": np.ones((1, 2))})

    with pytest.raises(DataError, match=r"0\.npz has no array for input 'ids'; did you mean 'id'"):
        list(open_data(tmp_path, two_inputs))


@pytest.mark.parametrize("content", [b"", b"PK no archive"])
def test_a_damaged_file_is_named(
    tmp_path: Path, two_inputs: list[InputInfo], content: bytes
) -> None:
    (tmp_path / "0.npz").write_bytes(content)

    with pytest.raises(DataError, match=r"0\.npz is not a sound \.npz .*: write it with"):
        list(open_data(tmp_path, two_inputs))


def test_preprocessing_is_refused(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    _save(tmp_path)

    with pytest.raises(ConfigError, match=r"but \.npz files are fed as they are"):
        open_data(tmp_path, two_inputs, preprocessing="imagenet")


def test_some_files_travel_by_name_and_hash(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    _save(tmp_path)
    source = NpzFolderSource(tmp_path, sorted(tmp_path.iterdir()), two_inputs, None)

    part = source.shard([2, 0])

    assert [name for name, _ in part] == [f"file {tmp_path / f'{index}.npz'}" for index in (2, 0)]
    assert part.digest(1) == source.digest(0) != source.digest(1)
