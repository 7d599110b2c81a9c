"""A comparison of two models, and the examination of a run."""

from __future__ import annotations

import importlib
import json
import math

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import comparison_report
from lowbit.api.compare import _analyzed_on, _effort, examine
from lowbit.api.compare import compare as compare_models
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert, decode_json
from lowbit.config.presets import find_preset
from lowbit.errors import ConfigError, DataError, ModelError
from lowbit.graph import io

module = importlib.import_module("lowbit.api.compare")


@pytest.fixture(scope="module")
def quantized():
    return lowbit.quantize(small_cnn(), data=small_feeds(8), preset="A8W8").quantized


def run(model, feed) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model if isinstance(model, onnx.ModelProto) else io.to_proto(model)
    return ort.InferenceSession(proto.SerializeToString(), options).run(None, feed)[0]


def sqnr(model, feeds) -> float:
    want = np.stack([run(small_cnn(), feed) for feed in feeds])
    got = np.stack([run(model, feed) for feed in feeds])
    return 10 * math.log10(np.square(want).sum() / np.square(want - got).sum())


def test_figures_are_those_that_onnxruntime_gives(quantized) -> None:
    feeds = small_feeds(5)

    report = compare_models(small_cnn(), quantized, feeds, budget="none")

    assert report.sqnr_db == pytest.approx(sqnr(quantized, feeds), abs=1e-3)
    assert report.verification_samples == 5
    assert (report.preset, report.target) == ("A8W8", "ryzen-ai")
    assert report.data == "5 samples from a list"
    assert report.size_before > report.size_after > 0


@pytest.mark.parametrize("ending", ["Relu", "Softmax", "Sigmoid"])
def test_the_verdict_is_that_of_the_run_that_made_the_model(ending) -> None:
    model = io.load(small_cnn())
    last = model.graph.outputs[0].producer()
    assert last is not None
    made = ir.node(ending, [last.outputs[0]], name="ending")
    made.outputs[0].name = "ended"
    made.outputs[0].type, made.outputs[0].shape = last.outputs[0].type, last.outputs[0].shape
    model.graph.append(made)
    model.graph.outputs[0] = made.outputs[0]
    feeds = small_feeds(12)
    run = lowbit.quantize(model, data=feeds, limit=8, preset="A8W8", promote=False)
    assert run.samples is not None
    held_out = list(run.samples.verification())

    found = compare_models(model, run.quantized, held_out, budget="none").verdict

    want = run.report.verdict
    assert want is not None
    assert (found.level, found.samples) == (want.level, want.samples)
    for one, other in zip(found.outputs, want.outputs, strict=True):
        assert (one.output, one.kind, one.figure) == (other.output, other.kind, other.figure)
        assert one.value == pytest.approx(other.value, rel=1e-3, abs=1e-9)
    assert f"on {len(held_out)} samples" in found.describe()


def test_a_limit_takes_some_of_the_samples_spread_over_all(quantized) -> None:
    assert compare_models(small_cnn(), quantized, small_feeds(9), limit=4).verification_samples == 4


def test_models_may_be_files_bytes_or_loaded(quantized, tmp_path) -> None:
    onnx.save(small_cnn(), tmp_path / "float.onnx")
    io.save(quantized, tmp_path / "int8.onnx")
    feeds = small_feeds(2)

    files = compare_models(tmp_path / "float.onnx", tmp_path / "int8.onnx", feeds, budget="none")
    data = compare_models(
        small_cnn().SerializeToString(), io.to_proto(quantized), feeds, budget="none"
    )

    assert files.outputs == data.outputs
    assert files.outputs == compare_models(small_cnn(), quantized, feeds, budget="none").outputs


def test_a_quantized_file_has_its_layers_compared(tmp_path) -> None:
    feeds = small_feeds(6)
    lowbit.quantize(small_cnn(), tmp_path / "q.onnx", data=feeds, preset="A16W8")

    report = compare_models(small_cnn(), tmp_path / "q.onnx", feeds)

    assert report.preset == "A16W8"
    assert report.sqnr_db > 30
    assert {"r1", "a1"} <= {score.tensor for score in report.layers}


def test_a_float_model_has_nothing_to_account_for() -> None:
    report = compare_models(small_cnn(), small_cnn(), small_feeds(2), timed=True)

    assert (report.budget, report.fused, report.layers, report.tensors) == (None, (), (), ())
    assert (report.preset, report.target) == ("unknown", "unknown")
    assert any("nothing in the second model is quantized" in doubt for doubt in report.doubts)
    assert report.latency is not None


def test_an_unknown_budget_is_refused(quantized) -> None:
    with pytest.raises(ConfigError, match=r"unknown budget 'fast' \(known: none, quick, full\)"):
        compare_models(small_cnn(), quantized, small_feeds(2), budget="fast")


def test_models_in_the_wrong_order_are_told(quantized) -> None:
    report = compare_models(quantized, small_cnn(), small_feeds(2), budget="none")

    assert report.doubts[0].endswith("the float model comes first")


def test_a_model_of_other_outputs_is_refused() -> None:
    other = small_cnn()
    other.graph.output[0].name = other.graph.node[-1].output[0] = "scores"

    with pytest.raises(ModelError, match="no output 'logits'"):
        compare_models(small_cnn(), other, small_feeds(1))


# Effort


@pytest.mark.parametrize(
    ("total", "budget", "expected"),
    [
        (1, "quick", 1),
        (8, "quick", 2),
        (50, "quick", 5),
        (500, "quick", 8),
        (3, "full", 3),
        (50, "full", 8),
    ],
)
def test_tensors_are_analyzed_on_one_sample_in_ten(total, budget, expected) -> None:
    assert _analyzed_on(total, budget) == expected


def test_the_effort_grows_with_the_samples() -> None:
    assert _effort(50, "none") == 0
    assert _effort(2, "quick") == 3
    assert _effort(50, "quick") == 20
    assert _effort(2, "full") == math.inf


def test_without_a_budget_layers_are_still_told(quantized) -> None:
    report = compare_models(small_cnn(), quantized, small_feeds(2), budget="none")

    assert report.budget is None
    assert "r1" in {score.tensor for score in report.layers}
    assert {"input", "w1"} <= {view.tensor for view in report.tensors}


# Notes


def test_an_output_of_boxes_and_scores_is_told_in_slices() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
      g (float[1,4,9] x) => (float[1,4,9] y) <float[1,4,1] f = {100, 100, 0.1, 0.1}> { y = Mul(x, f) }"""
    model = onnx.parser.parse_model(text)
    feeds = [
        {"x": np.random.default_rng(i).normal(size=(1, 4, 9)).astype(np.float32)} for i in range(3)
    ]
    quantized = lowbit.quantize(
        model, data=feeds, preset="U8S8", promote=False, allow_ruined=True
    ).quantized

    report = compare_models(model, quantized, feeds)

    assert [score.tensor for score in report.slices] == ["y[:, 0:2]", "y[:, 2:4]"]
    assert any(note.startswith("output y holds values of different") for note in report.notes)
    # Scores share the boxes' scale: next to nothing is left of them.
    assert report.worst_slice_db < 15 < report.sqnr_db


@pytest.mark.parametrize(
    ("gap", "saturates", "words"),
    [
        (5.0, True, "5.0 dB worse; this processor's int8 kernels saturate in 16 bits"),
        (
            5.0,
            False,
            "5.0 dB worse; onnxruntime's fused kernels do not compute what the model says",
        ),
        (0.2, True, "this model and data are not affected"),
        (0.2, False, None),
    ],
)
def test_fused_kernels_that_differ_are_told(quantized, monkeypatch, gap, saturates, words) -> None:
    real = module.compare_outputs

    def with_gap(*args, **kwargs):
        found = real(*args, **kwargs)
        worse = {
            name: type(row)(signal=row.signal, noise=row.noise * 10 ** (gap / 10))
            for name, row in found.exact.items()
        }
        return module.dataclasses.replace(found, fused=worse)

    monkeypatch.setattr(module, "compare_outputs", with_gap)
    monkeypatch.setattr(comparison_report, "saturates_int8", lambda: saturates)

    report = compare_models(small_cnn(), quantized, small_feeds(2), budget="none")

    notes = [note for note in report.notes if "kernels" in note]
    assert len(notes) == (words is not None)
    assert (words or "") in "".join(notes)


def test_a_budget_of_refined_weights_is_told_with_care(quantized) -> None:
    plain = msgspec.structs.replace(find_preset("A8W8"), refinement=None)
    unrefined = lowbit.quantize(small_cnn(), data=small_feeds(4), config=plain).quantized

    def notes(model, **options) -> str:
        return " ".join(compare_models(small_cnn(), model, small_feeds(2), **options).notes)

    assert "were refined for its quantizers" in notes(quantized)
    assert "were refined" not in notes(quantized, budget="none")
    assert "were refined" not in notes(unrefined)


# Progress and times


def test_stages_are_told_and_timed(quantized) -> None:
    told = []
    feeds = small_feeds(4)

    report = compare_models(
        small_cnn(),
        quantized,
        feeds,
        timed=True,
        calibration=feeds,
        progress=lambda *row: told.append(row),
    )

    assert [row for row in told if row[0] == "compare"] == [
        ("compare", 0, None),
        *(("compare", done, 4) for done in (1, 2, 3, 4)),
    ]
    assert list(report.seconds) == ["compare", "analyze", "quantize again", "time"]
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    # A new run takes long enough to tell of its own stages.
    assert stages.index("quantize again") < stages.index("calibrate") < stages.index("time")


# A new run with promoted tensors


def test_a_new_run_with_what_is_suggested_is_measured(quantized) -> None:
    feeds = small_feeds(8)

    report = compare_models(small_cnn(), quantized, feeds, calibration=feeds)

    promotion = report.budget.promotion
    start = msgspec.to_builtins(find_preset("A8W8"))
    config = convert({**start, **json.loads(promotion.config)}, QuantConfig)
    again = lowbit.quantize(small_cnn(), data=feeds, config=config, limit=64)
    # On the two of eight samples that a quick budget analyzes.
    analyzed = [feeds[i] for i in (2, 5)]
    assert promotion.requantized_sqnr_db == pytest.approx(sqnr(again.quantized, analyzed), abs=0.01)


def test_what_was_excluded_or_overridden_before_stays_so() -> None:
    override = lowbit.TensorOverride(tensor="a1", range=(-1.0, 1.0))
    config = msgspec.structs.replace(
        find_preset("A8W8"), exclude=("fc",), tensors=(override,), refinement=None
    )
    model = lowbit.quantize(small_cnn(), data=small_feeds(2), config=config).quantized
    line = '{"tensors":[{"tensor":"r1","keep":"float"}],"exclude":["conv2","fc"]}'

    changed = module._changed(model, line)

    assert changed.exclude == ("fc", "conv2")
    assert changed.tensors == (override, lowbit.TensorOverride(tensor="r1", keep="float"))
    stored = decode_json(model.metadata_props["lowbit.config"], QuantConfig)
    assert msgspec.structs.replace(changed, exclude=("fc",), tensors=(override,)) == stored


def test_a_model_that_does_not_say_how_it_was_made_cannot_be_made_again(quantized) -> None:
    other = quantized.clone()
    del other.metadata_props["lowbit.config"]

    with pytest.raises(ConfigError, match=r"does not say how it was made.*skip --retry"):
        compare_models(small_cnn(), other, small_feeds(2), calibration=small_feeds(2))


def test_a_model_for_an_unknown_target_is_taken_for_any_runtimes(quantized) -> None:
    other = quantized.clone()
    other.metadata_props["lowbit.target"] = "another"

    assert module._target(other).name == "onnxruntime"
    assert module._target(quantized).name == "ryzen-ai"


# Labels


def test_labels_must_be_one_for_each_sample(quantized) -> None:
    with pytest.raises(DataError, match="3 labels for 4 samples; give one for each"):
        compare_models(small_cnn(), quantized, small_feeds(4), labels=[0] * 3)


def test_with_labels_every_sample_runs_fused(quantized) -> None:
    (row,) = compare_models(
        small_cnn(), quantized, small_feeds(20), labels=[0] * 20, budget="none"
    ).accuracy

    assert (row.samples, row.fused_score is not None) == (20, True)


# A run that is examined


def test_a_run_is_examined_on_its_verification_samples() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(8), limit=6, verify=2, preset="A16W8")

    report = examine(small_cnn(), result)

    # Equalized weights are known here, where comparing files cannot tell them.
    assert report.budget is not None
    assert report.budget.float_sqnr_db > 60
    assert (report.verification_samples, report.calibration_samples) == (2, 6)
    assert report.quantized == result.report.quantized


def test_what_a_run_knows_of_itself_stays_in_its_examination() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(8), limit=6, verify=2)

    report = examine(small_cnn(), result, budget="none")

    assert report.notes[: len(result.report.notes)] == result.report.notes
    assert report.steps == result.report.steps
    assert report.seconds.items() > result.report.seconds.items()
    assert [score.tensor for score in report.outputs] == ["logits"]
    assert report.sqnr_db == pytest.approx(result.report.sqnr_db, abs=1e-6)
    assert report.tensors


def test_labels_come_with_the_batches_of_a_data_loader() -> None:
    rng = np.random.default_rng(3)
    images = rng.normal(size=(6, 3, 32, 32)).astype(np.float32)
    model = small_cnn()
    session = ort.InferenceSession(model.SerializeToString())
    name = session.get_inputs()[0].name
    best = [int(session.run(None, {name: image[None]})[0].argmax()) for image in images]
    wrong = [*best[:5], 1 - best[5] if best[5] in (0, 1) else 0]
    loader = [(images[:4], np.array(wrong[:4])), (images[4:], np.array(wrong[4:]))]

    report = lowbit.compare(model, model, loader, labels="batches", budget="none")

    assert report.verification_samples == 6
    assert report.accuracy[0].float_score == pytest.approx(100 * 5 / 6)


def test_batches_without_labels_are_named() -> None:
    with pytest.raises(DataError, match="batch 0 is a ndarray; with labels='batches'"):
        lowbit.compare(small_cnn(), small_cnn(), [np.zeros((1, 3, 32, 32))], labels="batches")


@pytest.mark.parametrize("preset", ["W4", "W8"])
def test_weights_with_scales_per_group_can_be_compared(preset: str) -> None:
    rng = np.random.default_rng(4)
    weight = rng.normal(size=(100, 8)).astype(np.float32)  # groups of 32 do not divide 100
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    shapes = {"x": [1, 100], "y": [1, 8]}
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name])]
        for name in "xy"
    )
    constants = [onnx.numpy_helper.from_array(weight, "w")]
    graph = onnx.helper.make_graph([node], "product", inputs, outputs, constants)
    opsets = [onnx.helper.make_opsetid("", 21)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    feeds = [{"x": rng.normal(size=(1, 100)).astype(np.float32)} for _ in range(4)]

    made = lowbit.quantize(model, preset=preset, target="onnxruntime-weights").model
    report = lowbit.compare(model, made, feeds)

    assert report.sqnr_db > (15 if preset == "W4" else 35)
