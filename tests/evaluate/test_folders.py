import csv
import io
import json
import math

import numpy as np
import pytest
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio

from lowbit.errors import DataError
from lowbit.evaluate import evaluate


@pytest.fixture
def folders(tmp_path):
    first, second = tmp_path / "float", tmp_path / "int8"
    first.mkdir()
    second.mkdir()
    return first, second


def save_both(folders, name, want, got) -> None:
    for folder, array in zip(folders, (want, got), strict=True):
        np.save(folder / name, array)


def test_every_file_is_scored_and_the_worst_is_named(folders) -> None:
    rng = np.random.default_rng(0)
    for index in range(11):
        want = rng.normal(size=(1, 3, 12, 16)).astype(np.float32)
        save_both(
            folders, f"{index}.npy", want, want + 0.01 * (index + 1) * rng.normal(size=want.shape)
        )

    found = evaluate(*folders)

    assert [row.name for row in found.files] == [f"{i}.npy" for i in range(11)]
    summary = {row.figure: row for row in found.summary}
    assert {row.worst_name for row in summary.values()} == {"10.npy"}
    assert summary["l2"].worst == max(row.l2 for row in found.files)
    assert summary["psnr"].worst == min(row.psnr for row in found.files)
    assert summary["cosine"].mean == pytest.approx(np.mean([row.cosine for row in found.files]))


def test_arrays_of_one_npz_are_told_apart(folders) -> None:
    boxes, scores = np.arange(8.0).reshape(2, 4), np.arange(3.0)
    np.savez(folders[0] / "0.npz", boxes=boxes, scores=scores)
    np.savez(folders[1] / "0.npz", boxes=boxes + 1, scores=scores)

    found = {row.name: row for row in evaluate(*folders).files}

    assert found["0.npz:boxes"].l2 == pytest.approx(math.sqrt(8))
    assert found["0.npz:scores"].l2 == 0


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg"])
def test_pictures_have_a_peak_of_255(folders, suffix) -> None:
    rng = np.random.default_rng(1)
    for folder in folders:
        pixels = rng.integers(0, 100, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"a.{suffix}", quality=100)

    (row,) = evaluate(*folders).files

    want, got = (np.asarray(Image.open(folder / f"a.{suffix}")) for folder in folders)
    assert row.psnr == pytest.approx(peak_signal_noise_ratio(want, got, data_range=255))
    assert row.shape == (16, 20, 3)


def test_results_in_folders_inside_are_found(folders) -> None:
    for folder in folders:
        (folder / "logits").mkdir()
        np.save(folder / "logits" / "0.npy", np.ones(3))

    assert [row.name for row in evaluate(*folders).files] == ["logits/0.npy"]


def test_a_missing_file_is_named(folders) -> None:
    save_both(folders, "0.npy", np.ones(3), np.ones(3))
    np.save(folders[0] / "1.npy", np.ones(3))

    with pytest.raises(DataError, match=r"int8 lacks 1\.npy, which .*float has"):
        evaluate(*folders)
    with pytest.raises(DataError, match=r"float has|float lacks"):
        evaluate(*reversed(folders))


def test_unequal_shapes_are_named(folders) -> None:
    save_both(folders, "0.npy", np.ones((1, 3)), np.ones((3, 1)))

    with pytest.raises(DataError, match=r"0\.npy has shape \[1, 3\] in .* but \[3, 1\]"):
        evaluate(*folders)


def test_unequal_arrays_of_an_npz_are_named(folders) -> None:
    np.savez(folders[0] / "0.npz", a=np.ones(2))
    np.savez(folders[1] / "0.npz", b=np.ones(2))

    with pytest.raises(DataError, match="'a' is only in one"):
        evaluate(*folders)


@pytest.mark.parametrize("content", [b"", b"not an array"])
def test_a_broken_file_is_named(folders, content) -> None:
    for folder in folders:
        (folder / "0.npy").write_bytes(content)

    with pytest.raises(DataError, match=r"cannot read .*0\.npy"):
        evaluate(*folders)


def test_empty_and_absent_folders_are_named(folders, tmp_path) -> None:
    with pytest.raises(DataError, match="holds no results"):
        evaluate(*folders)
    with pytest.raises(DataError, match="does not exist"):
        evaluate(tmp_path / "no", folders[1])


def test_csv_and_json_hold_the_same_figures(folders) -> None:
    save_both(folders, "0.npy", np.arange(4.0), np.arange(4.0) + 0.5)
    found = evaluate(*folders)

    (row,) = csv.DictReader(io.StringIO(found.to_csv()))
    (same,) = json.loads(found.to_json())["files"]

    assert float(row["l2"]) == same["l2"] == 1.0
    assert (row["shape"], row["ssim"], same["ssim"]) == ("4", "nan", None)
