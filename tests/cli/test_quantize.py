"""``lowbit quantize`` from end to end."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.token_models import text_model, write_texts
from PIL import Image

from lowbit import QuantConfig
from lowbit.calibrate import collect as collecting
from lowbit.cli import main
from lowbit.config.extensible import decode_json
from lowbit.config.transforms import SmoothQuant


def scales(path: Path) -> dict[str, float]:
    """Return every scale of a quantized model, by name."""
    return {
        tensor.name: float(onnx.numpy_helper.to_array(tensor).max())
        for tensor in onnx.load(path).graph.initializer
        if "scale" in tensor.name
    }


def test_writes_a_quantized_model_and_says_how_good_it_is(run, model, data) -> None:
    ran = run("quantize", model, "int8.onnx", "--data", data, "--limit", 8)

    assert ran.code == 0, ran.err
    assert ran.err == ""
    assert "QuantizeLinear" in {node.op_type for node in onnx.load("int8.onnx").graph.node}
    assert "A8W8 for ryzen-ai" in ran.out
    assert "8 to calibrate, 4 others to verify" in ran.out
    assert "on 4 held-out samples" in ran.out
    assert "logits" in ran.out
    assert "times smaller" in ran.out
    assert "does not run Cos" in ran.out
    assert "next: add --report page.html" in ran.out
    assert len(ran.out.splitlines()) <= 25
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_a_goal_that_is_met_gives_its_trail(run, model, data) -> None:
    goal = ("--goal", "cosine>=0.9", "--budget", "5m", "--limit", 5)

    ran = run("quantize", model, "int8.onnx", "--data", data, *goal)

    assert ran.code == 0, ran.err
    assert "goal: cosine>=0.9 met (cosine" in ran.out
    assert "kept preset: A8W8" in ran.out
    assert len(ran.out.splitlines()) <= 25


def test_a_goal_that_is_missed_writes_the_best_and_says_what_is_missing(run, model, data) -> None:
    words = ("--goal", "sqnr>=300", "--strategies", "accurate", "--limit", 5)

    ran = run(
        "quantize", model, "int8.onnx", "--data", data, *words, "--report", "r.json", "--json"
    )

    assert ran.code == 5
    assert Path("int8.onnx").exists()
    assert "misses the goal sqnr>=300" in ran.err
    assert "is missing to sqnr>=300" in ran.err
    goal = json.loads(ran.out)["goal"]
    assert not goal["met"]
    assert goal["trials"][0]["strategy"] == "preset"
    assert {row["strategy"] for row in goal["trials"]} == {"preset", "accurate"}
    assert json.loads(Path("r.json").read_text("utf-8"))["goal"] == goal


def test_the_metric_of_a_goal_is_a_function_of_the_users(run, model, data) -> None:
    Path("goal_metric.py").write_text(
        "def first(outputs, label):\n    return float(outputs['logits'].flat[0])\n"
    )
    words = ("--metric", "goal_metric:first", "--goal", "drop<=1000", "--limit", 5)

    ran = run("quantize", model, "int8.onnx", "--data", data, *words)

    assert ran.code == 0, ran.err
    assert "goal: drop<=1000 met" in ran.out
    assert "no --goal" in run("quantize", model, "o.onnx", "--data", data, *words[:2]).err


def test_verbose_prints_every_table(run, model, data) -> None:
    ran = run("quantize", model, "int8.onnx", "--data", data, "--limit", 8, "--verbose")

    for title in ("outputs, against the float model", "worst layers", "steps tried"):
        assert title in ran.out


def test_all_data_is_used_without_a_limit_and_that_is_noted(run, model, data) -> None:
    ran = run("quantize", model, "int8.onnx", "--data", data, "--verify", 12)

    assert ran.code == 0
    assert "12 to calibrate, 12 of the same to verify" in ran.out
    assert "note: verified on calibration samples" in ran.out


def test_random_data_is_noted(run, model) -> None:
    ran = run("quantize", model, "int8.onnx", "--data", "random", "--limit", 2)

    assert ran.code == 0
    assert "note: calibrated on random data" in ran.out


def test_json_is_one_complete_document(run, model, data) -> None:
    ran = run(
        "quantize", model, "int8.onnx", "--data", data, "--json", "--limit", 8, "--report", "r.json"
    )

    report = json.loads(ran.out)
    assert ran.code == 0
    assert ran.err == ""
    assert report["output"] == "int8.onnx"
    assert report["model"] == str(model)
    assert report["preset"] == "A8W8"
    assert {score["tensor"] for score in report["outputs"]} == {"logits", "angle"}
    assert report["sqnr_db"] == min(score["sqnr_db"] for score in report["outputs"])
    assert report["calibration_samples"] == 8
    assert report["held_out"] is True
    assert [part["node"] for part in report["float_nodes"]] == ["cosine"]
    assert report["size_after"] < report["size_before"]
    assert {"calibrate", "verify"} <= set(report["seconds"])
    assert report["quantized"]
    assert report["layers"]
    assert Path("r.json").read_text() == ran.out


def test_quiet_prints_nothing(run, model, data) -> None:
    ran = run("quantize", model, "int8.onnx", "--data", data, "--quiet")

    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_options_change_the_scheme(run, model, data) -> None:
    ran = run(
        *("quantize", model, "int8.onnx", "--data", data, "--json", "--preset", "u8s8"),
        *("--calibration", "minmax", "--weights", "minmax", "--no-bias-correction"),
        *("--domain", "com.microsoft", "--exclude", "conv2", "--exclude-op", "Gemm"),
    )

    quantized = onnx.load("int8.onnx")
    config = json.loads(next(p.value for p in quantized.metadata_props if p.key == "lowbit.config"))
    assert ran.code == 0, ran.err
    assert set(json.loads(ran.out)["quantized"]) == {
        "activation uint8 asym minmax",
        "weight int8 sym saturation-free minmax",
    }
    why = {part["node"]: part["why"] for part in json.loads(ran.out)["float_nodes"]}
    assert why["conv2"] == "excluded by 'conv2'"
    assert why["classify"] == "excluded by 'Gemm'"
    assert config["bias_correction"] is False
    domains = {n.domain for n in quantized.graph.node if "QuantizeLinear" in n.op_type}
    assert domains == {"com.microsoft"}


def test_statistics_serve_another_method_without_running_the_model(
    run, model, data, monkeypatch
) -> None:
    common = ("--data", data, "--limit", 8, "--quiet", "--no-equalization")
    direct = ("--calibration", "percentile", "--percentile", 97)
    run("quantize", model, "minmax.onnx", *common, "--calibration", "minmax", "--save-stats", "s")
    run("quantize", model, "direct.onnx", *common, *direct)
    forbid_calibration(monkeypatch)

    again = run("quantize", model, "again.onnx", *common, "--calibration", "minmax", "--stats", "s")
    other = run("quantize", model, "other.onnx", *common, *direct, "--stats", "s")

    assert (again.code, other.code) == (0, 0), again.err + other.err
    assert scales(Path("again.onnx")) == scales(Path("minmax.onnx"))
    assert scales(Path("other.onnx")) == scales(Path("direct.onnx"))
    assert scales(Path("other.onnx")) != scales(Path("minmax.onnx"))


def test_the_report_says_that_statistics_were_reused(run, model, data) -> None:
    run("quantize", model, "a.onnx", "--data", data, "--limit", 8, "--save-stats", "s.npz")

    few = ("--limit", 2, "--verify", 10)
    ran = run("quantize", model, "b.onnx", "--data", data, *few, "--stats", "s.npz")

    assert "8 to calibrate (saved statistics), 10 others to verify" in ran.out


def forbid_calibration(monkeypatch) -> None:
    def refuse(*_, **__):
        raise AssertionError("calibration ran the model")

    monkeypatch.setattr(collecting, "_run_all", refuse)


def test_an_edited_plan_is_followed(run, model, data) -> None:
    common = ("--data", data, "--limit", 8, "--preset", "U8S8")
    run("quantize", model, "a.onnx", *common, "--save-plan", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    for tensor in plan["tensors"]:
        if tensor["name"] == "r2":
            tensor["spec"] |= {"format": "int16", "symmetric": True}
    plan["tensors"] = [t for t in plan["tensors"] if t["name"] != "logits"]
    Path("plan.json").write_text(json.dumps(plan))

    ran = run("quantize", model, "b.onnx", *common, "--plan", "plan.json")

    graph = onnx.load("b.onnx").graph
    types = {
        node.input[0]: next(i.data_type for i in graph.initializer if i.name == node.input[2])
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    }
    assert ran.code == 0, ran.err
    assert types["r2"] == onnx.TensorProto.INT16
    assert types["r1"] == onnx.TensorProto.UINT8
    assert "logits" not in types


def test_a_plan_brings_its_own_preset(run, model, data) -> None:
    # With every step, as a plan does not say which of them help.
    common = ("--data", data, "--keep-all-steps")
    run("quantize", model, "a.onnx", *common, "--preset", "XINT8", "--save-plan", "p.json")

    ran = run("quantize", model, "b.onnx", *common, "--plan", "p.json", "--json")

    assert json.loads(ran.out)["preset"] == "XINT8"
    assert json.loads(Path("p.json").read_text())["rescaling"]["factors"]
    assert scales(Path("a.onnx")) == scales(Path("b.onnx"))


def test_images_are_prepared_as_asked(run, model, folder) -> None:
    images = folder / "images"
    images.mkdir()
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (10, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(images / f"{seed}.png")

    ran = run(
        *("quantize", model, "int8.onnx", "--data", "images", "--json"),
        *("--preprocess", "imagenet", "--mean", "-0.5,0,0.5", "--scale", "1/128"),
    )

    assert ran.code == 0, ran.err
    assert "scale 0.0078125, mean -0.5,0,0.5, std 0.229,0.224,0.225" in json.loads(ran.out)["data"]


# What goes wrong


def fails(ran, *words: str) -> None:
    """Assert that a run failed with one line that holds the words, and printed nothing else."""
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("lowbit: error: ")
    assert ran.err.count("\n") == 1
    for word in words:
        assert word in ran.err


@pytest.fixture
def kept(folder: Path) -> Path:
    """An output of an earlier run, which no failure may touch."""
    path = folder / "int8.onnx"
    path.write_bytes(b"from before")
    return path


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_too_low_a_ratio_names_tensors_and_writes_nothing(run, model, data, kept, options) -> None:
    ran = run(
        *("quantize", model, kept, "--data", data, "--min-sqnr", 90, "--report", "r.json", *options)
    )

    fails(ran, "less than the 90 dB asked for", "r1", "--exclude")
    assert kept.read_bytes() == b"from before"
    assert sorted(path.name for path in kept.parent.iterdir()) == [
        "data.npz",
        "int8.onnx",
        "int8.onnx.refining",
        "model.onnx",
    ]


def test_a_high_enough_ratio_passes(run, model, data) -> None:
    assert run("quantize", model, "int8.onnx", "--data", data, "--min-sqnr", 10).code == 0


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ("no such model", "did you mean 'model.onnx'")),
        (b"", ("is empty",)),
        (b"PK\x03\x04 this is no model at all" * 20, ("zip archive", "export to ONNX")),
        (b"hello", ("ONNX",)),
    ],
)
def test_a_bad_model_file_is_named(run, data, kept, content, words) -> None:
    if content is not None:
        Path("mode.onnx").write_bytes(content)

    ran = run("quantize", "mode.onnx", kept, "--data", data)

    fails(ran, "mode.onnx", *words)
    assert kept.read_bytes() == b"from before"


def test_a_truncated_model_is_named(run, model, data, kept) -> None:
    Path("half.onnx").write_bytes(model.read_bytes()[: model.stat().st_size // 2])

    fails(run("quantize", "half.onnx", kept, "--data", data), "half.onnx", "truncated")
    assert kept.read_bytes() == b"from before"


def test_a_quantized_model_is_refused(run, model, data, kept) -> None:
    run("quantize", model, "first.onnx", "--data", data, "--quiet")

    fails(run("quantize", "first.onnx", kept, "--data", data), "already quantized")
    assert kept.read_bytes() == b"from before"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "XINT9"), ("unknown preset 'XINT9'", "'XINT8'")),
        (("--target", "ryzen-ia"), ("unknown target", "'ryzen-ai'")),
        (("--calibration", "mze"), ("--calibration", "did you mean 'mse'?", "entropy")),
        (("--weights", "entropy"), ("--weights", "minmax, mse")),
        (("--head", "float16"), ("--head", "did you mean 'float'?")),
        (("--domain", "com.amd"), ("--domain", "com.microsoft")),
        (("--preprocess", "imagnet"), ("--preprocess", "did you mean 'imagenet'?")),
        (("--layout", "NHCW"), ("--layout", "NCHW")),
        (("--limit", "0"), ("--limit", "at least 1")),
        (("--limit", "many"), ("--limit", "'many'")),
        (("--percentile", "0.99"), ("--percentile", "above 50")),
        (("--percentile", "99", "--calibration", "mse"), ("--percentile 99", "not mse")),
        (("--min-sqnr", "high"), ("--min-sqnr", "'high'")),
        (("--std", "0"), ("std", "above 0")),
        (("--mean", "1,2"), ("mean", "3 in the order R, G, B")),
        (("--resize", "1,2,3"), ("--resize", "height,width")),
        (("--scale", "1/0"), ("--scale", "'1/0'")),
        (("--exclude", "conv3"), ("'conv3'", "did you mean", "'conv1'")),
        (("--include", "conv3"), ("'conv3'", "did you mean", "'conv1'")),
        (("--exclude", "re:["), ("--exclude", "regular expression")),
        (("--exclude-op", "Convv"), ("no Convv node", "did you mean 'Conv'")),
        (("--exclude", "*"), ("nothing would be quantized",)),
        (("--skip-rewrite", "clip_to_rely"), ("'clip_to_rely'", "to skip")),
        (("--calibratoin", "mse"), ("unknown option '--calibratoin'", "'--calibration'")),
        (("--no-equalisation",), ("unknown option '--no-equalisation'", "'--no-equalization'")),
        (("-q",), ("unknown option '-q'",)),
        (("--stats", "nothing.npz"), ("nothing.npz",)),
        (("--plan", "nothing.json"), ("cannot read the plan nothing.json",)),
        (("--config", "nothing.json"), ("cannot read the configuration nothing.json",)),
        (("--stats", "data.npz", "--save-stats", "s.npz"), ("give one of the two",)),
    ],
)
def test_a_wrong_option_is_explained(run, model, data, kept, options, words) -> None:
    ran = run("quantize", model, kept, "--data", data, *options)

    fails(ran, *words)
    assert kept.read_bytes() == b"from before"


def test_other_files_are_no_statistics_and_no_plan(run, model, data, kept) -> None:
    fails(run("quantize", model, kept, "--data", data, "--stats", data), "data.npz")
    Path("half.npz").write_bytes(data.read_bytes()[:1000])
    fails(run("quantize", model, kept, "--data", data, "--stats", "half.npz"), "half.npz")
    fails(run("quantize", model, kept, "--data", data, "--plan", data), "data.npz")
    fails(run("quantize", model, kept, "--data", data, "--config", data), "data.npz")


def test_a_missing_folder_is_said_before_anything_is_read(run) -> None:
    # Neither the model nor the data exists: had the work begun, they would be what is missed.
    fails(run("quantize", "no.onnx", "no/int8.onnx", "--data", "no.npz"), "folder no", "make it")
    for option in ("--save-stats", "--save-plan", "--report"):
        ran = run("quantize", "no.onnx", "int8.onnx", "--data", "no.npz", option, "no/file")
        fails(ran, "folder no", "make it")


def test_a_folder_is_no_output(run, model, data, folder) -> None:
    fails(run("quantize", model, folder, "--data", data), "is a folder")


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_an_output_that_may_not_be_written_is_said_before_anything_is_read(run, folder) -> None:
    locked = folder / "locked"
    locked.mkdir(mode=0o500)

    fails(run("quantize", "no.onnx", locked / "int8.onnx", "--data", "no.npz"), "cannot write")


def test_no_file_of_the_run_is_overwritten(run, model, data) -> None:
    before = model.read_bytes()

    fails(run("quantize", model, model, "--data", data), "would overwrite")
    fails(run("quantize", model, "a", "--data", data, "--report", "a"), "would overwrite")
    assert model.read_bytes() == before


def test_data_is_asked_for(run, model, kept) -> None:
    fails(run("quantize", model, kept), "--data")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            dict.fromkeys(("imag", "other"), np.ones((2, 3, 8, 8), np.float32)),
            ("'image'", "did you mean 'imag'"),
        ),
        ({"image": np.full((2, 3, 8, 8), np.nan, np.float32)}, ("'image'",)),
        ({"image": np.ones((0, 3, 8, 8), np.float32)}, ("0 rows",)),
        ({"image": np.ones((2, 3, 9, 9), np.float32)}, ("'image'", "9")),
    ],
)
def test_wrong_data_is_explained(run, model, kept, arrays, words) -> None:
    np.savez("wrong.npz", **arrays)

    fails(run("quantize", model, kept, "--data", "wrong.npz"), *words)
    assert kept.read_bytes() == b"from before"


@pytest.mark.usefixtures("data")
def test_missing_and_empty_data_is_explained(run, model, kept) -> None:
    Path("empty").mkdir()

    fails(run("quantize", model, kept, "--data", "dta.npz"), "does not exist", "'data.npz'")
    fails(run("quantize", model, kept, "--data", "empty"), "holds no data")
    assert kept.read_bytes() == b"from before"


def test_a_plan_and_options_that_decide_one_exclude_each_other(run, model, data, kept) -> None:
    run("plan", model, "--output", "plan.json")

    ran = run("quantize", model, kept, "--data", data, "--plan", "plan.json", "--exclude", "conv1")

    fails(ran, "--exclude decides the plan")


def test_a_plan_for_another_target_is_refused(run, model, data, kept) -> None:
    run("plan", model, "--output", "plan.json", "--preset", "XINT8")

    ran = run("quantize", model, kept, "--data", data, "--plan", "plan.json", "--preset", "A8W8")

    fails(ran, "made for target ryzen-ai-cnn")


def test_a_plan_that_does_not_fit_is_explained(run, model, data, kept) -> None:
    run("plan", model, "--output", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    plan["tensors"][0] |= {"name": "imago", "leader": "imago"}
    Path("plan.json").write_text(json.dumps(plan))

    ran = run("quantize", model, kept, "--data", data, "--plan", "plan.json")

    fails(ran, "'imago'", "did you mean 'image'")


def test_a_failure_while_writing_leaves_nothing(run, model, data, kept, monkeypatch) -> None:
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lowbit.cli.quantize.save_plan", fail)

    ran = run("quantize", model, kept, "--data", data, "--save-stats", "s", "--save-plan", "p")

    fails(ran, "cannot write p", "No space left")
    assert kept.read_bytes() == b"from before"
    assert sorted(path.name for path in kept.parent.iterdir()) == [
        "data.npz",
        "int8.onnx",
        "int8.onnx.refining",
        "model.onnx",
    ]


def test_reconstruction_can_be_skipped_and_scales_stay(run, model, data) -> None:
    plain = run("quantize", model, "a.onnx", "--data", data)
    ran = run("quantize", model, "b.onnx", "--data", data, "--no-reconstruction")

    assert (plain.code, ran.code) == (0, 0)
    assert scales(Path("a.onnx")) == scales(Path("b.onnx"))


@pytest.mark.parametrize(("option", "kept"), [((), SmoothQuant()), (("--no-smooth-quant",), None)])
def test_smooth_quant_can_be_skipped(run, model, data, option, kept) -> None:
    options = ("--data", data, "--keep-all-steps", "--no-reconstruction", "--no-equalization")

    ran = run("quantize", model, "a.onnx", *options, *option)

    assert ran.code == 0, ran.err
    written = {p.key: p.value for p in onnx.load("a.onnx").metadata_props}["lowbit.config"]
    assert decode_json(written, QuantConfig).smooth_quant == kept


def test_equalization_can_be_skipped(run, model, data) -> None:
    options = ("--preset", "A16W8", "--data", data, "--json", "--no-reconstruction")
    with_it = run("quantize", model, "a.onnx", *options, "--keep-all-steps")
    without = run("quantize", model, "b.onnx", *options, "--no-equalization")

    assert (with_it.code, without.code) == (0, 0)
    assert not json.loads(with_it.out)["steps"]
    assert [step["name"] for step in json.loads(without.out)["steps"]] == ["bias correction"]
    assert any("equalized" in note for note in json.loads(with_it.out)["notes"])
    assert not any("equalized" in note for note in json.loads(without.out)["notes"])


def test_weight_ranges_can_go_by_the_layers_output(run, model, data) -> None:
    options = ("--data", data, "--json", "--no-equalization", "--no-reconstruction")
    done = run("quantize", model, "out.onnx", *options, "--weights", "output")

    assert done.code == 0, done.err
    kinds = json.loads(done.out)["quantized"]
    assert any(kind.startswith("weight") and kind.endswith("output") for kind in kinds), kinds


def test_a_page_holds_what_single_tensors_do(run, model, data) -> None:
    ran = run("quantize", model, "int8.onnx", "--data", data, "--limit", 8, "--report", "r.html")

    assert (ran.code, ran.err) == (0, "")
    (text,) = re.findall(r'id="data">(.*?)</script>', Path("r.html").read_text(), re.DOTALL)
    (entry,) = json.loads(text)["reports"]
    assert entry["title"] == "int8.onnx"
    report = entry["report"]
    assert report["network"]["nodes"]
    assert report["budget"]["rows"]
    assert {"image", "w1"} <= {view["tensor"] for view in report["tensors"]}
    # Of a run it says also what it was calibrated on.
    assert (report["calibration_samples"], report["verification_samples"]) == (8, 4)


def test_resuming_where_nothing_was_killed_starts_anew(run, model, data) -> None:
    whole = run("quantize", model, "a.onnx", "--data", data, "--quiet")
    resumed = run("quantize", model, "b.onnx", "--data", data, "--quiet", "--resume")

    assert (whole.code, resumed.code) == (0, 0)
    assert onnx.load("a.onnx").graph == onnx.load("b.onnx").graph
    assert not list(Path().glob("*.refining"))


def test_texts_are_data_and_the_group_size_an_option(tmp_path: Path) -> None:
    write_texts(tmp_path)
    onnx.save(text_model(), tmp_path / "model.onnx")

    code = main(
        [
            "quantize",
            str(tmp_path / "model.onnx"),
            str(tmp_path / "w4.onnx"),
            *("--preset", "W4", "--group-size", "16", "--quiet"),
            *("--data", str(tmp_path / "texts.txt")),
            *("--tokenizer", str(tmp_path / "tokenizer.json")),
        ]
    )

    assert code == 0
    made = onnx.load(tmp_path / "w4.onnx")
    assert 16 in {a.i for n in made.graph.node for a in n.attribute if a.name == "block_size"}


_PLAIN = (
    "--preset",
    "A8W8",
    "--limit",
    8,
    "--no-promote",
    "--no-reconstruction",
    "--keep-all-steps",
    "--no-equalization",  # which would rescale the tensor whose range is given
    "--quiet",
)


@pytest.mark.parametrize(
    ("highest", "code", "said"),
    [
        (60.0, 0, ""),
        (1.5, 0, "lowbit: warning: int8.onnx is poor ("),
        (0.01, 4, "lowbit: error: the quantized model is ruined ("),
    ],
)
def test_a_poor_model_is_warned_of_and_a_ruined_one_refused(
    run, model, data, highest: float, code: int, said: str
) -> None:
    # As calibration on the wrong data would: nearly all of what a layer gives is clipped.
    Path("c.json").write_text(json.dumps({"tensors": [{"tensor": "r2", "range": [0, highest]}]}))

    ran = run("quantize", model, "int8.onnx", "--data", data, "--config", "c.json", *_PLAIN)

    assert ran.code == code, ran.err
    assert ran.err.startswith(said) if said else ran.err == ""
    assert Path("int8.onnx").exists() == (code == 0)
    assert ("Try --preset A16W8" in ran.err) == bool(said)
