"""The report of a run: figures, notes, and warnings about numbers that a format hardly holds."""

from __future__ import annotations

import itertools
import math

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.config.presets import MORE_PRECISE, PURPOSES, find_preset
from lowbit.config.specs import Rule
from lowbit.config.transforms import CrossLayerEqualization
from lowbit.errors import VerificationError
from lowbit.evaluate.runner import Run
from lowbit.graph import io, parts
from lowbit.graph.tensors import tensors_size
from lowbit.pipeline import verify as verifying
from lowbit.pipeline.verify import check_sqnr, next_step, verify
from lowbit.report.values import Report, Score, Step

_MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,2] x) => (float[N,2] y) <float[2] w = {WEIGHT, 1}> {
        m = Mul(x, w)
        s = Abs(m)
        y = Sqrt(s)
    }"""


def _notes(preset: str, peak: float, weight: float = 2.0) -> tuple[str, ...]:
    model = onnx.parser.parse_model(_MODEL.replace("WEIGHT", str(weight)))
    data = [{"x": np.array([[peak, 0.5]], np.float32)}]
    return lowbit.quantize(model, data=data, preset=preset).report.notes


def test_float16_activations_near_65504_are_named_and_scaling_proposed() -> None:
    (note,) = _notes("FP16", 9e3)

    assert "activation 'm' reaches 1.8e+04 (1 more like it)" in note
    assert "65504" in note
    assert "_SCALED" in note
    assert "so does BF16" in note


def test_float16_constants_too() -> None:
    (note,) = _notes("FP16", 0.1, 2e4)

    assert note.startswith("weight 'w' reaches 2e+04, near")


@pytest.mark.parametrize("preset", ["BF16", "FP16_SCALED", "BF16_SCALED", "MXINT8"])
def test_wide_scaled_and_block_formats_are_not_concerned(preset: str) -> None:
    assert not any("overflow" in note for note in _notes(preset, 9e3))


def test_bfloat16_near_the_end_of_floats_is() -> None:
    (note,) = (note for note in _notes("BF16", 1.6e38) if "overflow" in note)

    assert "_SCALED" in note
    assert "so does BF16" not in note


# The report


def _plain(preset: str = "A8W8", **changes) -> lowbit.QuantConfig:
    plain = {"refinement": None, "keep_only_if_better": False, "equalization": None}
    return msgspec.structs.replace(find_preset(preset), **plain, **changes)


def _inner(model: onnx.ModelProto, names: list[str], feed) -> dict[str, np.ndarray]:
    """Return inner tensors of a model that runs as written."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in names
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(copy.SerializeToString(), options)
    return dict(zip(names, session.run(names, feed), strict=True))


def test_layers_are_measured_as_they_are_read_in_the_quantized_model() -> None:
    feeds = small_feeds(1)
    result = lowbit.quantize(small_cnn(), data=feeds, config=_plain())

    layers = {score.tensor: score for score in result.report.layers}
    want = _inner(small_cnn(), ["r1"], feeds[0])["r1"]
    read = "r1_DequantizeLinear_Output"
    got = _inner(result.model, [read], feeds[0])[read]
    sqnr = 10 * math.log10(np.square(want).sum() / np.square(want - got).sum())
    assert layers["r1"].sqnr_db == pytest.approx(sqnr, abs=0.01)
    assert layers["r1"].max_error == pytest.approx(np.abs(want - got).max(), rel=1e-3)
    # An output is among the outputs.
    assert "logits" not in layers
    assert [score.tensor for score in result.report.outputs] == ["logits"]


def test_outputs_are_measured_on_every_sample_to_verify_on() -> None:
    feeds = [{"input": (k + 1) * feed["input"]} for k, feed in enumerate(small_feeds(9))]

    result = lowbit.quantize(small_cnn(), data=feeds, config=_plain())

    want, got = (
        np.concatenate([_inner(model, ["logits"], feed)["logits"] for feed in feeds])
        for model in (small_cnn(), result.model)
    )
    sqnr = 10 * math.log10(np.square(want).sum() / np.square(want - got).sum())
    assert result.report.verification_samples == 9
    assert result.report.sqnr_db == pytest.approx(sqnr, abs=0.01)


def test_each_model_is_opened_once_for_layers_and_once_for_outputs(monkeypatch) -> None:
    state = lowbit.quantize(small_cnn(), data=small_feeds(9), config=_plain()).state
    opened, plain = [], Run.opened
    monkeypatch.setattr(
        Run,
        "opened",
        lambda run, *sharing, **more: opened.append(run) or plain(run, *sharing, **more),
    )

    verify(state, state.samples)

    layers, outputs = opened[:2], opened[2:]
    assert sorted(run.name for run in layers) == ["the float model", "the quantized model"]
    assert sorted(run.name for run in outputs) == ["the float model", "the quantized model"]
    assert all("logits" not in run.names for run in layers)
    assert all(list(run.names) == ["logits"] for run in outputs)


def test_a_layer_is_held_against_what_it_is_computed_from() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(2), config=_plain())

    layers = {score.tensor: score for score in result.report.layers}
    assert layers["input"].upstream_db == math.inf
    assert layers["r1"].upstream_db == layers["input"].sqnr_db


def test_layers_come_in_the_order_of_the_graph_and_weights_are_none() -> None:
    report = lowbit.quantize(small_cnn(), data=small_feeds(2), config=_plain("U8S8")).report

    order = ["input", "r1", "c2", "a1", "g1", "f1"]
    found = [score.tensor for score in report.layers]
    assert found == [name for name in order if name in found]
    assert {"input", "r1", "a1"} <= set(found)


def test_formats_are_counted_and_sizes_told() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(2), config=_plain())

    report = result.report
    assert report.quantized == {
        f"activation {find_preset('A8W8').activation.describe()}": len(result.plan.activations()),
        f"weight {find_preset('A8W8').weight.describe()}": 3,
    }
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in small_cnn().graph.initializer}
    assert report.size_before == sum(array.nbytes for array in stored.values())
    assert report.size_after == tensors_size(result.quantized)
    written = [onnx.numpy_helper.to_array(t).nbytes for t in result.model.graph.initializer]
    assert report.size_after == sum(written)


_MAP = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,3,9,9] x) => (float[1,4,9,9] y) <float[4,3,1,1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}> {
        y = Conv(x, w)
    }"""


@pytest.mark.parametrize(
    ("asked", "seen"), [({}, 8), ({"verify": 32}, 32), ({"min_sqnr": 5.0}, 32)]
)
def test_all_samples_verify_where_they_are_asked_for(asked: dict, seen: int) -> None:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 3, 9, 9)).astype(np.float32)} for _ in range(64)]

    model = onnx.parser.parse_model(_MAP)
    report = lowbit.quantize(model, data=feeds, config=_plain("A16W8"), **asked).report

    assert report.verdict.level == "good"
    assert report.verification_samples == report.verdict.samples == seen


def test_steps_and_the_samples_are_told() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(8), config=_plain(), limit=6, verify=2)
    step = Step(name="a step", before=2.0, after=1.0, kept=True)

    report = verify(result.state, result.samples, (step,))

    assert report.steps == (step,)
    assert (report.calibration_samples, report.verification_samples) == (6, 2)
    assert report.held_out
    assert report.notes == result.report.notes == ()
    assert report.version == lowbit.__version__


def test_a_broken_graph_is_no_result() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(2), config=_plain())
    node = next(n for n in result.quantized.graph if n.op_type == "Conv")
    node.op_type = "Convolution"

    with pytest.raises(VerificationError):
        verify(result.state, result.samples)


@pytest.mark.parametrize(
    ("data", "preset", "words"),
    [
        ("random", "A8W8", ["calibrated on random data", "verified on calibration samples"]),
        ("random", "BF16", ["verified on random data"]),
        (small_feeds(2), "A8W8", ["verified on calibration samples"]),
        (small_feeds(2), "BF16", []),
    ],
)
def test_doubts_say_how_far_the_figures_can_be_trusted(data, preset, words) -> None:
    result = lowbit.quantize(
        small_cnn(),
        data=data,
        config=_plain(preset),
        limit=2 if data == "random" else None,
        verify=2 if data != "random" else 0,
    )

    doubts = result.report.doubts
    assert len(doubts) == len(words)
    for doubt, word in zip(doubts, words, strict=True):
        assert doubt.startswith(word)


def test_it_is_said_that_no_output_can_be_compared() -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[1,64] x) => (string[1,8] y) <float[64,8] w> { m = MatMul (x, w)\n y = Cast<to=8> (m) }""")
    rng = np.random.default_rng(0)
    del model.graph.initializer[:]
    weight = rng.normal(size=(64, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    feeds = [{"x": rng.normal(size=(1, 64)).astype(np.float32)} for _ in range(2)]

    report = lowbit.quantize(model, data=feeds, preset="W8").report

    assert report.verdict is None
    assert report.doubts[-1].startswith("no output can be compared")


# Figures that came from elsewhere, and those that are not good enough


def _report(*ratios: float, doubts: tuple[str, ...] = ()) -> Report:
    scores = tuple(
        Score(tensor=f"t{i}", sqnr_db=ratio, cosine=1.0, max_error=0.0, upstream_db=before)
        for i, (before, ratio) in enumerate(itertools.pairwise((math.inf, *ratios)))
    )
    return Report(
        preset="p",
        target="t",
        version="0",
        data="d",
        calibration_samples=0,
        verification_samples=4,
        held_out=False,
        outputs=scores[-1:],
        layers=scores,
        doubts=doubts,
        notes=("a note",),
    )


def test_an_exporters_stack_traces_are_left_out_and_it_is_said() -> None:
    model = small_cnn()
    traced = onnx.ModelProto()
    traced.CopyFrom(model)
    onnx.helper.set_metadata_props(
        traced.graph.node[0], {"pkg.torch.onnx.stack_trace": "a" * 120_000}
    )

    with_traces, without = (
        lowbit.quantize(m, data=small_feeds(4), config=_plain()) for m in (traced, model)
    )

    assert [note for note in with_traces.report.notes if "0.1 MB of stack traces" in note]
    assert not [note for note in without.report.notes if "stack traces" in note]
    written, expected = (r.model.SerializeToString() for r in (with_traces, without))
    assert len(written) == len(expected)


def test_saved_statistics_are_named_and_what_no_longer_holds_is_not() -> None:
    first = lowbit.quantize(small_cnn(), data=small_feeds(8), config=_plain(smooth_quant=None))

    again = lowbit.quantize(
        small_cnn(), data=small_feeds(2), config=_plain(smooth_quant=None), stats=first.stats
    )

    assert first.report.doubts == ("verified on calibration samples: the data has no others",)
    assert not first.report.reused_statistics
    assert again.report.reused_statistics
    assert again.report.calibration_samples == 8
    assert again.report.doubts == ()
    assert again.report.notes[0] == "calibrated with saved statistics of 8 samples"


def test_saved_statistics_fit_only_if_transforms_saw_the_same_data() -> None:
    config = msgspec.structs.replace(_plain(), equalization=CrossLayerEqualization())
    first = lowbit.quantize(small_cnn(), data=small_feeds(4), config=config)

    again = lowbit.quantize(small_cnn(), data=small_feeds(4), config=config, stats=first.stats)

    assert "valid only if transforms used the same data" in again.report.notes[0]


def test_samples_that_only_round_weights_are_counted_as_calibration() -> None:
    config = find_preset("W4").with_group_size(16)

    report = lowbit.quantize(small_cnn(), data=small_feeds(4), config=config).report

    assert report.calibration_samples == 4
    assert report.doubts == ("verified on calibration samples: the data has no others",)


@pytest.mark.parametrize("lowest", [None, 20.0, 19.9, -5.0])
def test_a_ratio_that_is_high_enough_passes(lowest) -> None:
    check_sqnr(_report(50.0, 20.0), lowest)


def test_too_low_a_ratio_names_where_it_falls_and_the_way_out() -> None:
    report = _report(60.0, 58.0, 30.0, 31.0, 12.34)

    with pytest.raises(
        VerificationError,
        match=r"has 12\.3 dB, less than the 20 dB asked for; .* at t4 \(12\.3 dB\), "
        r"t2 \(30\.0 dB\), t0 \(60\.0 dB\), t1 \(58\.0 dB\)\. Try --exclude",
    ):
        check_sqnr(report, 20)


def test_constants_are_counted_as_they_are_stored() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        g (float[2] x) => (float[2] y) <float[2] a = {1, 2}, int8[3] b = {1, 2, 3}> {
            z = Mul(x, a)
            y = Identity(z)
        }"""
    )

    assert tensors_size(io.load(model)) == 2 * 4 + 3


def _counted_passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of what is run in parts from now on, everything being large."""
    names: list[str] = []
    make = parts.PartwiseRun

    def counted(*args, name: str, **options):
        names.append(name)
        return make(*args, name=name, **options)

    monkeypatch.setattr(parts, "LARGE_NODES", 2)
    monkeypatch.setattr(parts, "PartwiseRun", counted)
    return names


@pytest.mark.parametrize("fused", [True, False])
def test_a_large_model_is_verified_in_one_pass_of_each_kind(
    monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    """To open all of its parts takes longer than to run them."""
    monkeypatch.setattr(verifying, "_runs_fused", lambda _: fused)
    result = lowbit.quantize(small_cnn(), data=small_feeds(6), preset="A8W8")
    small = verify(result.state, result.samples)
    passes = _counted_passes(monkeypatch)

    large = verify(result.state, result.samples)

    assert sorted(passes).count("the quantized model") == (1 if fused else 2)
    assert passes.count("the quantized model, fused") == fused
    assert passes.count("the float model") == 2  # as loaded, and as calibrated
    assert [score.tensor for score in large.layers] == [score.tensor for score in small.layers]
    for rows in (lambda report: report.layers, lambda report: report.outputs):
        got, want = ([score.sqnr_db for score in rows(r)] for r in (large, small))
        assert got == pytest.approx(want, abs=0.05)


@pytest.mark.parametrize(
    ("preset", "target", "expected"),
    [
        ("A8W8", "ryzen-ai", "Try --preset A16W8 or BF16, or look"),
        ("A16W8", "ryzen-ai", "Try --preset BF16, or look"),
        ("U8S8", "onnxruntime", "Try --preset U16S8_PERCHANNEL or W8, or look"),
        ("DYNAMIC8", "onnxruntime-weights", "Try --preset W8, or look"),
        ("BF16", "ryzen-ai-float", "Look for the cause with"),
        ("VINT8", "vint8", "Look for the cause with"),
    ],
)
def test_more_precise_presets_for_the_same_devices_are_next(
    preset: str, target: str, expected: str
) -> None:
    report = msgspec.structs.replace(_report(50.0, 3.0), preset=preset, target=target)

    assert next_step(report).startswith(expected)


def test_presets_that_are_more_precise_are_for_devices_of_the_same_purpose() -> None:
    for target, presets in MORE_PRECISE.items():
        (purpose,) = [p for p in PURPOSES if target in p.targets]
        floats = [p for p in PURPOSES if "ryzen-ai-float" in p.targets]
        targets = {find_preset(name).target for name in presets}

        allowed = {*purpose.targets, *(t for p in floats if "ryzen" in target for t in p.targets)}
        assert targets <= allowed


def test_what_onnxruntime_rounds_in_a_default_session_counts() -> None:
    # As in a mel spectrogram: small sums beside large ones in one block, and a logarithm after them.
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,5,64] x) => (float[1,5,8] y) <float[64,8] w> {
            m = MatMul(x, w)
            y = Log(m) }"""
    )
    rng = np.random.default_rng(0)
    weight = np.kron(np.eye(8), np.ones((8, 1))) * rng.uniform(0.5, 1, (64, 8))
    del model.graph.initializer[:]
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight.astype(np.float32), "w"))
    power = np.repeat(np.geomspace(1e-4, 1e4, 8), 8)
    feeds = [{"x": (power * rng.uniform(0.5, 1, (1, 5, 64))).astype(np.float32)} for _ in range(8)]

    # Left alone, the product stays in float.
    config = find_preset("W8")
    rule = Rule(op_type="MatMul", weight=config.weight)
    config = msgspec.structs.replace(config, rules=(rule,))

    result = lowbit.quantize(model, data=feeds, config=config, promote=False, allow_ruined=True)

    options = ort.SessionOptions()
    options.log_severity_level = 4
    run = ort.InferenceSession(result.model.SerializeToString(), options).run
    want = [np.log(feed["x"].astype(float) @ weight) for feed in feeds]
    noise = [np.square(run(None, f)[0] - y).sum() for f, y in zip(feeds, want, strict=True)]
    signal = sum(np.square(y).sum() for y in want)
    is_near = np.isfinite(noise).all() and sum(noise) < 1e-3 * signal
    assert result.report.verdict is not None
    assert (result.report.verdict.level == "good") == is_near
