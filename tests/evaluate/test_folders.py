"""Results as files: what a model gives for each sample, and how alike two folders are."""

import csv
import io
import json
import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import skimage
from helpers.small_models import small_cnn, small_feeds
from onnx import TensorProto, helper
from PIL import Image

import lowbit
from lowbit.errors import DataError, OutputError
from lowbit.evaluate import evaluate, infer

# One process imports SciPy's and scikit-image's modules: two seconds.
pytestmark = pytest.mark.xdist_group("scipy")


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
def test_images_have_a_peak_of_255(folders, suffix) -> None:
    rng = np.random.default_rng(1)
    for folder in folders:
        pixels = rng.integers(0, 100, (16, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"a.{suffix}", quality=100)

    (row,) = evaluate(*folders).files

    want, got = (np.asarray(Image.open(folder / f"a.{suffix}")) for folder in folders)
    assert row.psnr == pytest.approx(
        skimage.metrics.peak_signal_noise_ratio(want, got, data_range=255)
    )
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


# Inference


def two_and_two() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Sub", ["a", "b"], ["out/difference"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in ("a", "b")]
    results = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4])
        for n in ("sum", "out/difference")
    ]
    graph = helper.make_graph(nodes, "two", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_one_output_is_an_array_a_sample(tmp_path) -> None:
    feeds = small_feeds(3)

    assert infer(small_cnn(), tmp_path / "out", data=feeds) == 3

    session = ort.InferenceSession(small_cnn().SerializeToString())
    for index, feed in enumerate(feeds):
        want = session.run(None, feed)[0]
        np.testing.assert_allclose(
            np.load(tmp_path / "out" / f"{index}.npy"), want, rtol=1e-4, atol=1e-5
        )


def test_many_inputs_and_outputs_are_named_arrays(tmp_path) -> None:
    rng = np.random.default_rng(0)
    feeds = [{k: rng.normal(size=(1, 4)).astype(np.float32) for k in "ab"} for _ in range(2)]

    infer(two_and_two(), tmp_path / "out", data=feeds)

    second = np.load(tmp_path / "out" / "1.npz")
    np.testing.assert_array_equal(second["sum"], feeds[1]["a"] + feeds[1]["b"])
    np.testing.assert_array_equal(second["out/difference"], feeds[1]["a"] - feeds[1]["b"])


def test_folders_of_two_models_evaluate_to_the_report_of_compare(tmp_path) -> None:
    feeds = small_feeds(4)
    quantized = lowbit.quantize(small_cnn(), data=feeds).model
    infer(small_cnn(), tmp_path / "float", data=feeds)
    infer(quantized, tmp_path / "int8", data=feeds)

    found = evaluate(tmp_path / "float", tmp_path / "int8")

    report = lowbit.compare(small_cnn(), quantized, feeds)
    noise = sum(row.l2**2 for row in found.files)
    signal = sum((np.load(tmp_path / "float" / f"{i}.npy") ** 2).sum() for i in range(4))
    assert 10 * np.log10(signal / noise) == pytest.approx(report.sqnr_db, abs=0.01)


def test_results_of_two_runs_are_not_mixed(tmp_path) -> None:
    (tmp_path / "old.npy").touch()

    with pytest.raises(OutputError, match="not an empty folder"):
        infer(small_cnn(), tmp_path, data=small_feeds(1))


def test_nothing_is_left_when_a_run_fails(tmp_path) -> None:
    feeds = [*small_feeds(1), {"input": np.zeros((1, 3, 5, 5), np.float32)}]

    with pytest.raises(lowbit.LowbitError):
        infer(small_cnn(), tmp_path / "out", data=feeds)

    assert list(tmp_path.iterdir()) == []


def test_progress_counts_the_samples_and_an_empty_folder_is_filled(tmp_path) -> None:
    told = []
    (tmp_path / "out").mkdir()

    count = infer(small_cnn(), tmp_path / "out", data=small_feeds(5), limit=3, progress=told.append)

    assert (count, told) == (3, [1, 2, 3])
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["0.npy", "1.npy", "2.npy"]


def test_fused_kernels_are_used_only_when_asked_for(tmp_path, monkeypatch) -> None:
    from lowbit.evaluate import folders

    optimized = []
    real = folders.run_model

    def run_model(run, feeds):
        optimized.append(run.optimize)
        return real(run, feeds)

    monkeypatch.setattr(folders, "run_model", run_model)

    infer(small_cnn(), tmp_path / "a", data=small_feeds(1))
    infer(small_cnn(), tmp_path / "b", data=small_feeds(1), fused=True)

    assert optimized == ["none", "all"]


def test_a_file_where_the_folder_should_be_is_not_overwritten(tmp_path) -> None:
    (tmp_path / "out").write_text("kept")

    with pytest.raises(OutputError, match="exists and is not an empty folder"):
        infer(small_cnn(), tmp_path / "out", data=small_feeds(1))

    assert (tmp_path / "out").read_text() == "kept"


def test_words_are_no_result(folders) -> None:
    save_both(folders, "0.npy", np.array(["a", "b"]), np.array(["a", "b"]))

    with pytest.raises(DataError, match=r"0\.npy is of type <U1 and <U1; expected numbers"):
        evaluate(*folders)


def test_of_many_missing_files_the_first_are_named(folders) -> None:
    save_both(folders, "0.npy", np.ones(2), np.ones(2))
    for index in range(1, 9):
        np.save(folders[0] / f"{index}.npy", np.ones(2))

    with pytest.raises(DataError, match=r"lacks 1\.npy, 2\.npy, .*5\.npy and 3 more"):
        evaluate(*folders)


def test_a_grey_and_a_transparent_image_are_read(folders) -> None:
    for folder in folders:
        Image.fromarray(np.full((12, 12), 9, np.uint8)).save(folder / "grey.png")
        Image.fromarray(np.full((12, 12, 4), 9, np.uint8)).save(folder / "clear.png")

    shapes = {row.name: row.shape for row in evaluate(*folders).files}

    assert shapes == {"clear.png": (12, 12, 3), "grey.png": (12, 12)}
