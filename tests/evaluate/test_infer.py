import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.errors import OutputError
from lowbit.evaluate import evaluate, infer


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
