from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lowbit.data import PREPROCESSINGS, InputInfo, Preprocessing, open_data
from lowbit.errors import ConfigError, DataError

SaveImage = Callable[..., np.ndarray]


def test_import_does_not_load_pillow() -> None:
    code = "import sys, lowbit.data; sys.exit('PIL' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_images_are_found_in_subfolders_sorted_next_to_other_files(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage
) -> None:
    names = ["b/2.png", "a/1.PNG", "b/1.bmp", "c.png"]
    pixels = {name: save_image(tmp_path / name, seed=seed) for seed, name in enumerate(names)}
    (tmp_path / "labels.csv").write_text("x")
    (tmp_path / "a" / "._1.png").write_bytes(b"no image")
    np.save(tmp_path / "mean.npy", np.ones(3))

    data = open_data(tmp_path, [image_input])

    expected = [pixels[name].transpose(2, 0, 1)[None] for name in sorted(names)]
    np.testing.assert_array_equal(
        [feed["image"] for feed in data], np.asarray(expected, np.float32) / 255
    )
    assert len(data) == 4
    assert not data.is_random
    told = f"4 images from folder {tmp_path} (1 .npy skipped), resized to 8x8"
    assert data.description.startswith(told)


def test_images_can_be_gone_through_again(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage
) -> None:
    for seed in range(10):
        save_image(tmp_path / f"{seed}.png", seed=seed)
    data = open_data(tmp_path, [image_input])

    first = [feed["image"] for feed in data]

    np.testing.assert_array_equal([feed["image"] for feed in data], first)
    assert data.fingerprint() == open_data(str(tmp_path), [image_input]).fingerprint()


def test_preprocessing_is_taken_by_value_or_name(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage
) -> None:
    save_image(tmp_path / "a.png", 12, 10)

    prints = {
        open_data(tmp_path, [image_input], preprocessing=given).fingerprint()
        for given in ("imagenet", PREPROCESSINGS["imagenet"])
    }

    assert len(prints) == 1
    assert prints != {open_data(tmp_path, [image_input]).fingerprint()}


def test_unknown_preprocessing_is_refused(tmp_path: Path, image_input: InputInfo) -> None:
    with pytest.raises(ConfigError, match="'tensorflw'; did you mean 'tensorflow'"):
        open_data(tmp_path, [image_input], preprocessing="tensorflw")


def test_broken_image_is_named(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage
) -> None:
    save_image(tmp_path / "a.png")
    (tmp_path / "b.jpg").write_bytes(b"\xff\xd8\xff\xe0 nonsense")

    with pytest.raises(DataError, match=r"image .*b\.jpg cannot be read"):
        list(open_data(tmp_path, [image_input]))


def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image(tmp_path / "a.png")
    (tmp_path / "closed").mkdir()
    whole = os.scandir

    def refused(folder: str) -> object:
        if Path(folder).name == "closed":
            raise PermissionError(13, "Permission denied", folder)
        return whole(folder)

    monkeypatch.setattr(os, "scandir", refused)

    with pytest.raises(DataError, match=r"folder .*closed cannot be read \(Permission denied\)"):
        open_data(tmp_path, [image_input])


def test_images_for_several_inputs_are_refused(
    tmp_path: Path, two_inputs: list[InputInfo], save_image: SaveImage
) -> None:
    save_image(tmp_path / "a.png")

    with pytest.raises(DataError, match=r"one input, this one has 2 .*\.npz"):
        open_data(tmp_path, two_inputs)


@pytest.mark.parametrize("kind", ["array", "npz", "npy"])
def test_uint8_rows_are_images_when_preprocessed(
    tmp_path: Path, image_input: InputInfo, kind: str
) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", image=rows)
    np.save(tmp_path / "a.npy", rows)
    source = {"array": rows, "npz": tmp_path / "a.npz", "npy": tmp_path / "a.npy"}[kind]

    data = open_data(source, [image_input], preprocessing=Preprocessing(scale=1.0), limit=3)

    for _ in range(2):
        np.testing.assert_array_equal(
            [feed["image"][0] for feed in data], rows[:3].transpose(0, 3, 1, 2)
        )


@pytest.mark.parametrize("kind", ["random", "list", "npy folder", "float rows"])
def test_preprocessing_of_what_is_no_image_is_refused(
    tmp_path: Path, image_input: InputInfo, kind: str
) -> None:
    row = np.ones((1, 3, 8, 8), np.float32)
    np.save(tmp_path / "a.npy", row)
    source = {"random": "random", "list": [row], "npy folder": tmp_path, "float rows": row}[kind]

    with pytest.raises(ConfigError, match=r"a preprocessing is given, but .*; do not give it"):
        open_data(source, [image_input], preprocessing="imagenet")


@pytest.mark.parametrize(
    ("names", "found"), [([], "found nothing"), (["a.csv", "b.txt"], r"found only \.csv, \.txt")]
)
def test_folder_without_data_is_refused(
    tmp_path: Path, image_input: InputInfo, names: list[str], found: str
) -> None:
    for name in names:
        (tmp_path / name).write_text("x")

    with pytest.raises(DataError, match=rf"folder .* holds no data: expected images .*{found}"):
        open_data(tmp_path, [image_input])


def test_path_that_does_not_exist_gets_the_nearest(tmp_path: Path, image_input: InputInfo) -> None:
    (tmp_path / "calibration").mkdir()

    with pytest.raises(
        DataError, match=r"'.*calibratoin' does not exist; did you mean 'calibration'"
    ):
        open_data(tmp_path / "calibratoin", [image_input])
    with pytest.raises(DataError, match="did you mean 'calibration' in"):
        open_data(tmp_path / "calibratio" / "deep" / "er", [image_input])
    with pytest.raises(DataError, match=r"'.*qqqq' does not exist; expected a folder"):
        open_data(tmp_path / "qqqq", [image_input])


def test_misspelt_random_is_recognized(
    tmp_path: Path, image_input: InputInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DataError, match="did you mean 'random'"):
        open_data("randm", [image_input])


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.jpg", r"kind '\.jpg' \(give its folder\)"), ("a.doc", r"kind '\.doc'")],
)
def test_file_of_unknown_kind_is_refused(
    tmp_path: Path, image_input: InputInfo, name: str, message: str
) -> None:
    (tmp_path / name).write_text("x")

    with pytest.raises(DataError, match=message):
        open_data(tmp_path / name, [image_input])


@pytest.mark.parametrize("limit", [0, -3])
def test_limit_below_one_is_refused(image_input: InputInfo, limit: int) -> None:
    with pytest.raises(DataError, match=f"limit is {limit}, expected at least 1"):
        open_data("random", [image_input], limit=limit)


@pytest.mark.parametrize("source", [None, 5, b"bytes", object(), np.float32, len])
def test_things_that_are_no_data_are_refused(source: object, image_input: InputInfo) -> None:
    with pytest.raises(DataError, match=r"data is of type .*; expected a folder"):
        open_data(source, [image_input])


def test_one_dict_is_refused(image_input: InputInfo) -> None:
    with pytest.raises(DataError, match="data is one dict: give a list of dicts"):
        open_data({"image": np.ones((1, 3, 8, 8), np.float32)}, [image_input])


def test_a_model_without_inputs_is_refused() -> None:
    with pytest.raises(DataError, match="the model has no input"):
        open_data("random", [])


TEXT = InputInfo("text", np.dtype(np.str_), (2,))


def test_strings_cannot_be_made_up() -> None:
    with pytest.raises(DataError, match="input 'text' takes strings"):
        open_data("random", [TEXT])


@pytest.mark.parametrize("dtype", [object, np.str_])
def test_strings_are_fed_as_they_are(dtype: type) -> None:
    words = [np.array(["a", "longer"], dtype), np.array(["b", ""], dtype)]

    for source in (words, iter(words)):
        data = open_data(source, [TEXT])
        for _ in range(2):
            assert [feed["text"].tolist() for feed in data] == [["a", "longer"], ["b", ""]]


def test_numbers_are_no_strings() -> None:
    with pytest.raises(DataError, match="input 'text': expected <U0, got int64"):
        list(open_data([np.array([1, 2])], [TEXT]))


def test_open_data_stays_open(image_input: InputInfo) -> None:
    data = open_data("random", [image_input])

    assert open_data(data, [image_input]) is data
    with pytest.raises(DataError, match="data is open already"):
        open_data(data, [image_input], limit=3)


@pytest.mark.parametrize("kind", ["images", "npy folder", "npz", "array", "list", "iter", "random"])
def test_feeds_can_be_selected_from_every_kind_of_source(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage, kind: str
) -> None:
    rows = np.random.default_rng(1).random((5, 1, 3, 8, 8), np.float32)
    for folder in ("images", "npy"):
        (tmp_path / folder).mkdir()
    for index in range(5):
        save_image(tmp_path / "images" / f"{index}.png", seed=index)
        np.save(tmp_path / "npy" / f"{index}.npy", rows[index])
    np.savez(tmp_path / "rows.npz", image=rows)
    source = {
        "images": tmp_path / "images",
        "npy folder": tmp_path / "npy",
        "npz": tmp_path / "rows.npz",
        "array": rows,
        "list": list(rows),
        "iter": iter(rows),
        "random": "random",
    }[kind]

    data = open_data(source, [image_input], limit=5)
    selected = [feed["image"] for feed in data.select([1, 4])]
    feeds = [feed["image"] for feed in data]

    assert len({feed.tobytes() for feed in feeds}) == 5
    np.testing.assert_array_equal(selected, [feeds[1], feeds[4]])


def test_samples_of_folders_are_called_after_their_files(
    tmp_path: Path, image_input: InputInfo, save_image: SaveImage
) -> None:
    for name in ("a/1.png", "b.png"):
        save_image(tmp_path / "images" / name)
    (tmp_path / "npy").mkdir()
    np.save(tmp_path / "npy" / "c.npy", np.ones((1, 3, 8, 8), np.float32))

    assert open_data(tmp_path / "images", [image_input]).names == ("a/1.png", "b.png")
    assert open_data(tmp_path / "npy", [image_input]).names == ("c.npy",)
    assert open_data("random", [image_input]).names == ()


def test_samples_of_several_images_have_no_names(tmp_path: Path, save_image: SaveImage) -> None:
    for index in range(4):
        save_image(tmp_path / f"{index}.png")

    data = open_data(tmp_path, [InputInfo("image", np.dtype(np.float32), (2, 3, 8, 8))])

    assert (len(data), data.names) == (2, ())


def test_an_empty_name_is_refused_and_not_the_current_folder() -> None:
    with pytest.raises(DataError, match="data is an empty name"):
        open_data("", [InputInfo("x", np.dtype(np.float32), (1, 3, 8, 8))])


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(DataError, match="File name too long"):
        open_data("n" * 300, [InputInfo("x", np.dtype(np.float32), (1, 3, 8, 8))])


def test_batches_of_a_loader_become_samples(image_input: InputInfo) -> None:
    rows = np.random.default_rng(0).random((10, 3, 8, 8), dtype=np.float32)
    batches = [(rows[i : i + 5], np.arange(5)) for i in (0, 5)]

    for source in (batches, iter(batches)):
        data = open_data(source, [image_input], limit=7)
        assert len(data) == 7
        found = np.concatenate([feed["image"] for feed in data])
        np.testing.assert_array_equal(found, rows[:7])


def test_a_reader_of_random_numbers_is_random_data(image_input: InputInfo) -> None:
    class Reader:
        is_random = True

        def __iter__(self):
            return iter([{"image": np.zeros((1, 3, 8, 8), np.float32) + 0.5}])

    assert open_data(Reader(), [image_input]).is_random
    assert not open_data(list(Reader()), [image_input]).is_random
