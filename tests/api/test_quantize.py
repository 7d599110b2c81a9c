"""``lowbit.quantize`` and ``lowbit.plan`` from end to end, measured by an onnxruntime of its own."""

from __future__ import annotations

import html
import pathlib
import sys

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.token_models import run_tokens, token_feeds, token_model

import lowbit
from lowbit.api.quantize import checkpoint_of
from lowbit.calibrate.statistics import load_stats, save_stats
from lowbit.config.methods import Percentile
from lowbit.config.presets import PRESETS, find_preset
from lowbit.config.refinement import AdaRound
from lowbit.errors import ConfigError, DataError
from lowbit.graph import io
from lowbit.ops.traits import OPERATORS
from lowbit.pipeline import stages
from lowbit.targets.builtin import find_target


def _exact(model: onnx.ModelProto, level: str = "ORT_ENABLE_ALL") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.enable_mem_reuse = False  # planning it takes most of the time for block formats
    return ort.InferenceSession(model.SerializeToString(), options)


def _sqnr(want: np.ndarray, got: np.ndarray) -> float:
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_gives_a_valid_model_close_to_float(preset: str) -> None:
    model, feeds = small_cnn(), small_feeds(24)
    four_bits = preset in ("MX4", "MXFP4E2M1")
    lowest = 30 if "16" in preset else 6 if four_bits else 15

    result = lowbit.quantize(model, data=feeds, preset=preset)

    onnx.checker.check_model(result.model, full_check=True)
    reference = ort.InferenceSession(model.SerializeToString())
    unseen = small_feeds(40)[24:]
    want = np.concatenate([reference.run(None, feed)[0] for feed in unseen])
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"):
        session = _exact(result.model, level)
        got = np.concatenate([session.run(None, feed)[0] for feed in unseen])
        assert _sqnr(want, got) > lowest


def test_the_report_measures_the_written_model_against_the_loaded_one(
    tmp_path: pathlib.Path,
) -> None:
    model, feeds = small_cnn(), small_feeds(12)

    result = lowbit.quantize(
        model, tmp_path / "q.onnx", data=feeds, preset="A8W8", limit=8, verify=4
    )

    written, reference = _exact(onnx.load(tmp_path / "q.onnx"), "ORT_DISABLE_ALL"), _exact(model)
    # Held out are the samples spread evenly over all twelve.
    held = [feeds[i] for i in (2, 4, 7, 9)]
    want = np.concatenate([reference.run(None, feed)[0] for feed in held])
    got = np.concatenate([written.run(None, feed)[0] for feed in held])
    assert result.report.held_out
    assert result.report.sqnr_db == pytest.approx(_sqnr(want, got), abs=0.01)
    assert result.report.outputs[0].max_error == pytest.approx(np.abs(want - got).max(), rel=1e-3)
    assert result.report.calibration_samples == 8


def test_provenance_is_in_the_metadata() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(3), preset="XINT8")

    metadata = {p.key: p.value for p in result.model.metadata_props}
    assert metadata["lowbit.version"] == lowbit.__version__
    assert metadata["lowbit.preset"] == "XINT8"
    assert '"target":"ryzen-ai-cnn"' in metadata["lowbit.config"]
    assert "sha256" in metadata["lowbit.data"]
    assert result.model.producer_name == "lowbit"


def test_the_same_run_gives_the_same_bytes() -> None:
    first, second = (
        lowbit.quantize(small_cnn(), data=small_feeds(16), preset="A8W8").model.SerializeToString()
        for _ in range(2)
    )

    assert first == second


def test_the_result_does_not_depend_on_the_batch_size() -> None:
    feeds = small_feeds(12)
    batched = [
        {"input": np.concatenate([f["input"] for f in feeds[k : k + 4]])} for k in range(0, 12, 4)
    ]

    # Without gradients, whose random signs are drawn for each feed.
    config = msgspec.structs.replace(find_preset("A8W8"), sensitivity=None)

    one = lowbit.quantize(small_cnn(), data=feeds, config=config).params.tensors
    four = lowbit.quantize(small_cnn(), data=batched, config=config).params.tensors

    for name, params in one.items():
        # Float kernels may add up in another order for a batch, so ranges agree to rounding.
        np.testing.assert_allclose(params.scale, four[name].scale, rtol=1e-5)


def test_saved_statistics_serve_another_method_without_inference(tmp_path: pathlib.Path) -> None:
    feeds = small_feeds(10)
    first = lowbit.quantize(small_cnn(), data=feeds, preset="A8W8", keep_histograms=True)
    save_stats(first.stats, tmp_path / "stats.npz")
    other = find_preset("A8W8").with_method(Percentile(percentile=99.9))

    reused = lowbit.quantize(
        small_cnn(), data=feeds[:1], config=other, stats=load_stats(tmp_path / "stats.npz")
    )
    direct = lowbit.quantize(small_cnn(), data=feeds, config=other)

    for name, params in direct.params.tensors.items():
        np.testing.assert_array_equal(params.scale, reused.params.tensors[name].scale)
    assert reused.report.calibration_samples == 10


def test_bias_correction_brings_channel_means_back() -> None:
    model = small_cnn()
    feeds = [{"input": np.abs(feed["input"])} for feed in small_feeds(32)]
    config = find_preset("XINT8")
    reference = ort.InferenceSession(model.SerializeToString())
    want = np.concatenate([reference.run(None, f)[0] for f in feeds]).mean(axis=0)

    def bias(bias_correction: bool) -> float:
        chosen = msgspec.structs.replace(config, bias_correction=bias_correction, refinement=None)
        session = _exact(lowbit.quantize(model, data=feeds, config=chosen).model)
        got = np.concatenate([session.run(None, f)[0] for f in feeds]).mean(axis=0)
        return float(np.abs(got - want).mean())

    assert bias(bias_correction=True) < bias(bias_correction=False)


def test_an_excluded_node_is_found_by_the_name_of_what_was_fused_into_it() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), exclude=("bn1",))

    result = lowbit.quantize(small_cnn(), data=small_feeds(3), config=config)

    assert {f.node: f.why for f in result.plan.float_nodes} == {
        "conv1": "excluded by 'bn1'",
        "relu1": "its input is not quantized",
    }


def test_nothing_quantizable_is_an_error_not_a_float_model() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), exclude=("*",))

    with pytest.raises(lowbit.PlanError, match="nothing would be quantized"):
        lowbit.quantize(small_cnn(), data=small_feeds(2), config=config)


def test_a_target_that_is_not_built_in_is_obeyed() -> None:
    target = msgspec.structs.replace(find_target("onnxruntime"), name="mine", operators=("Gemm",))

    result = lowbit.quantize(
        small_cnn(), data=small_feeds(4), config=find_preset("U8S8"), target=target
    )

    assert result.plan.target == "mine"
    assert {row.why.split()[-2] for row in result.plan.tensors} == {"Gemm"}


def test_too_low_a_ratio_raises_and_keeps_an_existing_output(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "q.onnx"
    output.write_bytes(b"precious")

    with pytest.raises(lowbit.VerificationError, match="less than the 200 dB asked for"):
        lowbit.quantize(small_cnn(), output, data=small_feeds(4), min_sqnr=200)

    assert output.read_bytes() == b"precious"
    # The refined layers stay, for a run with --resume.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.onnx", "q.onnx.refining"]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"preset": "A8W9"}, lowbit.ConfigError, "did you mean 'A8W8'"),
        ({"limit": 0}, lowbit.DataError, "limit is 0; expected .* at least 1"),
        ({"limit": "64"}, lowbit.DataError, "limit is '64'; expected a whole number"),
        ({"verify": -1}, lowbit.DataError, "verify is -1; expected .* at least 0"),
        ({"data": []}, lowbit.DataError, "empty list"),
        ({"preset": "A8W8", "config": find_preset("A8W8")}, lowbit.ConfigError, "not both"),
        ({"config": "A8W8"}, lowbit.ConfigError, "expected a QuantConfig: give preset='A8W8'"),
    ],
)
def test_bad_arguments_are_named(
    arguments: dict[str, object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        lowbit.quantize(small_cnn(), **{"data": small_feeds(2), **arguments})


def test_a_missing_output_folder_is_said_before_the_work(tmp_path: pathlib.Path) -> None:
    def untouchable():
        raise AssertionError("data was read")
        yield

    with pytest.raises(lowbit.OutputError, match="does not exist"):
        lowbit.quantize(small_cnn(), tmp_path / "none" / "q.onnx", data=untouchable())


def test_stages_are_told_and_timed_in_their_order(tmp_path: pathlib.Path) -> None:
    told = []

    result = lowbit.quantize(
        small_cnn(),
        tmp_path / "q.onnx",
        data=small_feeds(8),
        progress=lambda stage, *_: told.append(stage),
    )

    stages = ["load", "normalize", "transform", "prepare", "plan", "calibrate", "solve", "emit"]
    stages += ["validate", "sensitivity", "refine", "verify", "save"]
    assert list(dict.fromkeys(told)) == stages
    assert list(result.report.seconds) == stages
    assert all(seconds >= 0 for seconds in result.report.seconds.values())


def test_a_plan_needs_no_data_and_can_be_followed() -> None:
    config = msgspec.structs.replace(find_preset("U8S8"), exclude=("conv2",), refinement=None)

    plan = lowbit.plan(small_cnn(), config=config)
    result = lowbit.quantize(small_cnn(), data=small_feeds(4), config=config, plan=plan)

    assert result.plan == plan
    assert (plan.preset, plan.target) == ("U8S8", "onnxruntime")
    assert "conv2" in {row.node for row in plan.float_nodes}
    assert lowbit.plan(small_cnn()).preset == "A8W8"


def test_a_plan_of_nothing_says_why() -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), exclude=("*",))

    plan = lowbit.plan(small_cnn(), config=config)

    assert plan.tensors == ()
    assert {row.why for row in plan.float_nodes} == {"excluded by '*'"}


def test_operators_of_ones_own_are_planned_like_any_other() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,8] x) => (float[2,8] y) <float[8,8] w = {WEIGHTS}> {
            h = MatMul(x, w)
            y = Cos(h)
        }""".replace("WEIGHTS", ",".join(str(i % 5 / 5) for i in range(64)))
    )
    target = find_target("onnxruntime")
    target = msgspec.structs.replace(target, operators=(*target.operators, "Cos"))
    operators = OPERATORS | {"Cos": OPERATORS["Sigmoid"]}

    without = lowbit.plan(model, preset="U8S8", target=target)
    planned = lowbit.plan(model, preset="U8S8", target=target, operators=operators)

    assert [row.op_type for row in without.float_nodes] == ["Cos"]
    assert planned.float_nodes == ()
    assert "y" in {row.name for row in planned.activations()}
    feeds = [{"x": np.random.default_rng(i).normal(size=(2, 8)).astype("f")} for i in range(4)]
    result = lowbit.quantize(model, data=feeds, preset="U8S8", target=target, operators=operators)
    assert result.plan.float_nodes == ()
    (last,) = (node for node in result.model.graph.node if "y" in node.output)
    assert last.op_type == "DequantizeLinear"
    assert result.report.sqnr_db > 20


def test_a_quantized_model_is_refused() -> None:
    quantized = lowbit.quantize(small_cnn(), data=small_feeds(2)).quantized

    with pytest.raises(lowbit.ModelError, match="already quantized"):
        lowbit.quantize(quantized, data=small_feeds(2))
    with pytest.raises(lowbit.ModelError, match="already quantized"):
        lowbit.plan(quantized)


def test_a_result_can_be_saved_and_has_all_that_was_found_out(tmp_path: pathlib.Path) -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(4), preset="A16W8")

    result.save(tmp_path / "later.onnx")

    assert onnx.load(tmp_path / "later.onnx") == result.model
    state = result.state
    assert (result.plan, result.params, result.stats, result.config) == (
        state.plan,
        state.params,
        state.stats,
        state.config,
    )
    assert result.quantized is state.emitted.model
    assert result.mixed_precision is None


def test_finished_layers_wait_beside_the_output() -> None:
    assert checkpoint_of("folder/int8.onnx") == pathlib.Path("folder", "int8.onnx.refining")


@pytest.mark.parametrize("given", [None, "elsewhere"])
def test_a_checkpoint_is_opened_where_asked_for_and_removed_when_done(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    opened = []
    real = stages.refine

    def refine(state, folder, progress, *, resume, **others):
        opened.append((folder, resume))
        return real(state, folder, progress, resume=resume, **others)

    monkeypatch.setattr(stages, "refine", refine)
    folder = None if given is None else tmp_path / given

    lowbit.quantize(
        small_cnn(), tmp_path / "q.onnx", data=small_feeds(4), checkpoint=folder, resume=True
    )

    assert opened == [(folder or tmp_path / "q.onnx.refining", True)]
    assert [path.name for path in tmp_path.iterdir()] == ["q.onnx"]


def test_a_refinement_that_cannot_be_had_is_refused_before_the_model_is_read() -> None:
    config = msgspec.structs.replace(find_preset("BF16"), refinement=AdaRound())

    with pytest.raises(lowbit.ConfigError, match="AdaRound chooses which integer"):
        lowbit.quantize("no such file.onnx", data="random", config=config)


def test_statistics_kept_from_another_run_are_told() -> None:
    stats = lowbit.quantize(small_cnn(), data=small_feeds(6), preset="A16W8").stats

    report = lowbit.quantize(small_cnn(), data=small_feeds(2), preset="A16W8", stats=stats).report

    assert report.notes[0].startswith(f"calibrated with saved statistics of {stats.samples}")
    assert report.calibration_samples == stats.samples


def test_the_loaded_model_is_not_changed() -> None:
    model = io.load(small_cnn())
    before = io.to_proto(model).SerializeToString()

    lowbit.quantize(model, data=small_feeds(4), preset="XINT8")

    assert io.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize(
    ("model", "preset", "lowest"),
    [
        ("mobilenet_v2_bn", "A8W8", 10.0),
        ("squeezenet1_1", "XINT8", 10.0),
        ("cifar10_resnet20", "XINT8", 12.0),
    ],
)
def test_real_models_quantize(assets: pathlib.Path, model: str, preset: str, lowest: float) -> None:
    sys.path.insert(0, str(assets))
    import assets as images

    if model.startswith("cifar"):
        feeds = [
            {"input": x[k : k + 1]} for x, _ in images.cifar10("calib", 24, 24) for k in range(24)
        ]
    else:
        name = images.MODELS[model]["input"]
        feeds = [{name: x} for x, _ in images.imagenet("calib", model, 1, 24)]

    result = lowbit.quantize(images.MODELS[model]["path"], data=feeds, preset=preset, limit=16)

    assert result.report.held_out
    assert result.report.sqnr_db > lowest


# What a notebook shows, and what a script may give


def test_a_result_prints_as_one_line_and_shows_its_page_in_a_notebook() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(6), limit=4)

    assert repr(result).startswith("Result(Report(A8W8 for ryzen-ai: ")
    assert result.report.verdict.level in repr(result)
    assert len(repr(result)) < 3 * 80
    assert "2 held-out samples" in repr(result)
    shown = result._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "A8W8" in html.unescape(shown)
    # Nothing of the page can leave the attribute.
    assert shown.count('"') == 8


def test_a_target_may_be_given_by_its_name() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(4), target="onnxruntime")

    assert result.state.target.name == result.report.target == "onnxruntime"
    assert lowbit.plan(small_cnn(), target="ryzen-ai-cnn", preset="XINT8").target == "ryzen-ai-cnn"
    with pytest.raises(ConfigError, match="did you mean 'onnxruntime'"):
        lowbit.plan(small_cnn(), target="onnxruntim")


def test_as_many_samples_calibrate_as_asked_for() -> None:
    result = lowbit.quantize(small_cnn(), data=small_feeds(40), limit=32)

    assert result.report.calibration_samples == 32
    assert result.report.verification_samples == 4
    assert result.report.steps


@pytest.mark.parametrize("preset", ["DYNAMIC8", "W8", "W4"])
def test_presets_that_calibrate_nothing_need_no_data(preset: str, tmp_path: pathlib.Path) -> None:
    result = lowbit.quantize(token_model(), tmp_path / "small.onnx", preset=preset)

    assert result.samples is None
    assert result.report.verification_samples == 0
    assert any("accuracy was not measured" in doubt for doubt in result.report.doubts)
    for feed in token_feeds():
        floats, made = (
            run_tokens(model, feed) for model in (token_model(), onnx.load(tmp_path / "small.onnx"))
        )
        assert ((made - floats) ** 2).mean() < 0.02 * (floats**2).mean()


@pytest.mark.parametrize(
    ("preset", "why"),
    [
        ("A8W8", "scales of activations are calibrated"),
        ("W4_GPTQ", r"weights are refined \(Gptq\)"),
    ],
)
def test_presets_that_need_data_say_so(preset: str, why: str) -> None:
    with pytest.raises(DataError, match=rf"{preset} needs data, because .*{why}: give samples"):
        lowbit.quantize(token_model(), preset=preset)


def test_no_ratio_is_measured_without_data() -> None:
    with pytest.raises(DataError, match="an SQNR of 20 dB is measured"):
        lowbit.quantize(token_model(), preset="W8", min_sqnr=20)
