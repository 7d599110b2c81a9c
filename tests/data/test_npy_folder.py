from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lowbit.data import InputInfo, open_data
from lowbit.errors import DataError


def save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)


def test_each_file_is_one_sample_with_or_without_a_batch(
    tmp_path: Path, vector_input: InputInfo
) -> None:
    save(tmp_path / "b.npy", np.full((1, 4), 2, np.float32))
    save(tmp_path / "a.npy", np.full(4, 1, np.float32))
    (tmp_path / "notes.txt").write_text("ignored")
    save(tmp_path / "._a.npy", np.full(4, 9, np.float32))

    data = open_data(tmp_path, [vector_input])

    assert [feed["x"].tolist() for feed in data] == [[[1] * 4], [[2] * 4]]
    assert data.description == f"2 samples from .npy files in folder {tmp_path}"
    assert len(open_data(tmp_path, [vector_input], limit=1)) == 1


@pytest.mark.parametrize("name", ["a_b_0", "a/b:0"])
def test_several_inputs_have_a_subfolder_each(
    tmp_path: Path, two_inputs: list[InputInfo], name: str
) -> None:
    for index in range(3):
        save(tmp_path / name / f"{index}.npy", np.full((1, 3), index + 1, np.float32))
        save(tmp_path / "ids" / f"{index}.npy", np.full((2,), index))

    feeds = list(open_data(tmp_path, two_inputs))

    assert [feed["a/b:0"].tolist() for feed in feeds] == [[[1] * 3], [[2] * 3], [[3] * 3]]
    assert [feed["ids"].tolist() for feed in feeds] == [[[0] * 2], [[1] * 2], [[2] * 2]]


def test_one_input_may_have_a_subfolder_too(tmp_path: Path, vector_input: InputInfo) -> None:
    save(tmp_path / "x" / "a.npy", np.ones(4, np.float32))

    assert len(list(open_data(tmp_path, [vector_input]))) == 1


def test_missing_partner_is_named(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    save(tmp_path / "a_b_0" / "1.npy", np.ones((1, 3), np.float32))
    save(tmp_path / "ids" / "1.npy", np.ones((1, 2), np.int64))
    save(tmp_path / "ids" / "2.npy", np.ones((1, 2), np.int64))

    with pytest.raises(DataError, match=r"a_b_0 has no file '2\.npy' for input 'a/b:0'"):
        open_data(tmp_path, two_inputs)


def test_missing_subfolder_is_named(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    save(tmp_path / "a_b_0" / "1.npy", np.ones((1, 3), np.float32))
    save(tmp_path / "idz" / "1.npy", np.ones((1, 2), np.int64))

    with pytest.raises(DataError, match="no subfolder for input 'ids'; did you mean 'idz'"):
        open_data(tmp_path, two_inputs)


def test_unknown_subfolder_is_named(tmp_path: Path, vector_input: InputInfo) -> None:
    save(tmp_path / "x" / "a.npy", np.ones(4, np.float32))
    save(tmp_path / "x2" / "a.npy", np.ones(4, np.float32))

    with pytest.raises(
        DataError, match=r"'x2' .* named after no input of the model; did you mean 'x'"
    ):
        open_data(tmp_path, [vector_input])


def test_empty_subfolders_are_refused(tmp_path: Path, two_inputs: list[InputInfo]) -> None:
    save(tmp_path / "other" / "deep" / "1.npy", np.ones(1))
    (tmp_path / "a_b_0").mkdir()
    (tmp_path / "ids").mkdir()

    with pytest.raises(DataError, match=r"no \.npy file in .*a_b_0, .*ids"):
        open_data(tmp_path, two_inputs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.ones(5, np.float32), r"file bad\.npy of .*, input 'x': expected shape \[batch, 4\], got \[5\]"),
        (np.ones(4), r"bad\.npy.*expected float32, got float64"),
        (np.array([1, 2, np.inf, 3], np.float32), r"bad\.npy.*1 of 4 values are NaN or Inf"),
        (np.array([object()]), r"file .*bad\.npy cannot be read"),
    ],
)  # fmt: skip
def test_bad_file_is_named(
    tmp_path: Path, vector_input: InputInfo, content: np.ndarray, message: str
) -> None:
    save(tmp_path / "bad.npy", content)

    with pytest.raises(DataError, match=message):
        list(open_data(tmp_path, [vector_input]))


def test_truncated_file_is_named(tmp_path: Path, vector_input: InputInfo) -> None:
    save(tmp_path / "a.npy", np.ones(4, np.float32))
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-3])

    with pytest.raises(DataError, match=r"file .*a\.npy cannot be read"):
        list(open_data(tmp_path, [vector_input]))


def test_fixed_batch_is_not_grouped_from_files(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", np.ones(4, np.float32))

    with pytest.raises(DataError, match="fixes the batch at 2"):
        list(open_data(tmp_path, [InputInfo("x", np.dtype(np.float32), (2, 4))]))
