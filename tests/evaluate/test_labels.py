"""Where labels come from."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from lowbit.data import InputInfo, open_data
from lowbit.errors import DataError
from lowbit.evaluate.labels import read_labels

INPUT = [InputInfo(name="x", dtype=np.dtype("float32"), shape=(1, 3, 8, 8))]


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in ("cat", "dog"):
        (tmp_path / "p" / kind).mkdir(parents=True)
        for index in range(3):
            pixels = np.full((8, 8, 3), 40 * index + 5, np.uint8)
            Image.fromarray(pixels).save(tmp_path / "p" / kind / f"{kind}{index}.png")
    return open_data("p", INPUT)


def test_labels_by_file_name_whatever_the_order_and_the_limit(images, tmp_path) -> None:
    rows = "".join(f"val/{n.split('/')[1]},{i},x\n" for i, n in enumerate(images.names))
    (tmp_path / "l.csv").write_text("file,label,split\n" + rows)

    assert read_labels("l.csv", images) == [0, 1, 2, 3, 4, 5]
    assert read_labels("l.csv", open_data("p", INPUT, limit=2)) == [0, 3]


def test_labels_by_folder(images) -> None:
    assert read_labels("folders", images) == [0, 0, 0, 1, 1, 1]


def test_labels_by_order(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", x=np.ones((4, 3, 8, 8), np.float32), y=np.arange(4))
    (tmp_path / "l.txt").write_text("3 2 1 0\n")
    np.save("l.npy", np.array([5, 6, 7, 8]))
    data = open_data("d.npz", INPUT)

    assert read_labels("l.txt", data) == [3, 2, 1, 0]
    assert read_labels("l.npy", data) == [5, 6, 7, 8]
    assert read_labels("d.npz:y", open_data("d.npz", INPUT, limit=2)) == [0, 1]


@pytest.mark.parametrize(
    ("source", "content", "message"),
    [
        ("a.csv", "file,label\ncat0.png,1\n", "no label for cat/cat1.png; .*such as 'cat0.png'"),
        ("a.csv", "x,y\n1,2\n", "expected file and label"),
        ("a.csv", "file;label\na;2\n", "has the columns file;label; .* with commas between"),
        ("a.txt", "1 2", "holds 2 labels, but the data 6 samples"),
        (
            "a.csv",
            "file,label\na/cat0.png,1\nb/cat0.png,2\n",
            "does not name cat/cat0.png, but several",
        ),
        ("a.md", "1", "unknown kind"),
        ("no.csv", None, "cannot read the labels"),
        ("no.txt", None, "cannot read the labels no.txt"),
        ("a.npy", "no array", "cannot read the labels a.npy"),
        ("scores.npy", None, "labels scores.npy hold float32 that are no integers"),
    ],
)
def test_labels_that_cannot_be_read_are_named(images, tmp_path, source, content, message) -> None:
    np.save("scores.npy", np.float32([0.5, np.nan, 1, 2, 3, 4]))
    if content is not None:
        (tmp_path / source).write_text(content)

    with pytest.raises(DataError, match=message):
        read_labels(source, images)


def test_files_of_one_name_may_share_a_label(images, tmp_path) -> None:
    (tmp_path / "a.csv").write_text(
        "file,label\n"
        + "".join(f"{part}/{n.split('/')[1]},7\n" for part in "ab" for n in images.names)
    )

    assert read_labels("a.csv", images) == [7] * 6


def test_labels_by_file_that_are_missing_are_missing_whatever_the_data(tmp_path) -> None:
    data = open_data(np.ones((4, 3, 8, 8), np.float32), INPUT)

    with pytest.raises(DataError, match=r"cannot read the labels .*no\.csv"):
        read_labels(str(tmp_path / "no.csv"), data)


def test_words_are_labels_too(images, tmp_path) -> None:
    rows = "".join(f"{name},{name.split('/')[0]}\n" for name in images.names)
    (tmp_path / "l.csv").write_text("image,label\n" + rows)

    assert read_labels("l.csv", images) == ["cat"] * 3 + ["dog"] * 3


def test_numbers_below_zero_stay_numbers(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l.txt").write_text("-1 x 2")
    data = open_data([{"x": np.ones((1, 3, 8, 8), np.float32)}] * 3, INPUT)

    assert read_labels("l.txt", data) == [-1, "x", 2]


def test_labels_by_file_need_names(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l.csv").write_text("file,label\na.png,1\n")
    data = open_data([{"x": np.ones((1, 3, 8, 8), np.float32)}], INPUT)

    with pytest.raises(DataError, match=r"these samples have no names; give a \.txt or \.npy"):
        read_labels("l.csv", data)


def test_one_folder_is_no_classes(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "p" / "a.png")

    with pytest.raises(DataError, match="at least two"):
        read_labels("folders", open_data("p", INPUT))


def test_an_array_that_an_npz_lacks_is_named(images, tmp_path) -> None:
    np.savez(tmp_path / "l.npz", label=np.arange(6), other=np.arange(6))

    assert read_labels("l.npz:label", images) == list(range(6))
    with pytest.raises(DataError, match=r"l\.npz has no array 'lable' \(it has label, other\)"):
        read_labels("l.npz:lable", images)
