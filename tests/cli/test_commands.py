"""``lowbit plan``, ``infer``, ``evaluate``, ``convert``, ``presets`` and ``targets``."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest

from lowbit.cli.commands import find_command
from lowbit.cli.options import make_parser
from lowbit.config.config import QuantConfig
from lowbit.config.extensible import convert
from lowbit.config.presets import PRESETS
from lowbit.targets.builtin import BUILTIN
from lowbit.targets.target import Target


def test_every_command_of_the_parser_does_something() -> None:
    for name in make_parser().commands:
        assert find_command(name).__name__ == name


def test_a_list_of_presets_takes_no_pipeline() -> None:
    code = "import sys; from lowbit.cli import main; main(['presets']); print('lowbit.pipeline' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False"


# Plan


def test_shows_decisions_and_what_stays_in_float_without_data(run, model) -> None:
    ran = run("plan", model, "--preset", "XINT8")

    assert ran.code == 0, ran.err
    assert ran.err == ""
    for word in ("XINT8 for ryzen-ai-cnn", "activations", "weights", "biases", "int8 sym pow2 mse"):
        assert word in ran.out
    assert "output of Relu relu1" not in ran.out
    assert ran.out.index("does not run Cos") < ran.out.index("int8 sym pow2 mse")
    assert len(ran.out.splitlines()) <= 25
    assert "1 of 8 nodes" in ran.out
    assert "does not run Cos quantized" in ran.out
    assert "stays in float, on the CPU" in ran.out
    assert "cosine" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_all_lists_every_decision(run, model) -> None:
    out = run("plan", model, "--preset", "XINT8", "--all").out

    for words in ("cosine", "output of Relu relu1", "bias of Conv conv1"):
        assert words in out


def test_a_wide_terminal_gets_a_line_a_tensor(run, model, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    lines = run("plan", model, "--preset", "U8S8", "--all").out.splitlines()

    shared = next(line.split() for line in lines if line.startswith("flat "))
    assert shared[:5] == ["flat", "uint8", "asym", "mse", "pooled"]


def test_json_is_a_plan_that_quantize_takes(run, model, data) -> None:
    ran = run("plan", model, "--preset", "XINT8", "--json", "--output", "written.json")

    plan = json.loads(ran.out)
    assert plan == json.loads(Path("written.json").read_text())
    assert plan["preset"] == "XINT8"
    assert [node["node"] for node in plan["float_nodes"]] == ["cosine"]
    Path("printed.json").write_text(ran.out)
    quantized = run("quantize", model, "int8.onnx", "--data", data, "--plan", "printed.json")
    assert quantized.code == 0, quantized.err


def test_exclusions_are_counted_by_reason(run, model) -> None:
    ran = run("plan", model, "--exclude", "re:^conv[0-9]$", "--exclude-op", "Gemm")

    assert "excluded by 're:^conv[0-9]$'" in ran.out
    assert "Conv x2" in ran.out
    assert "excluded by 'Gemm'" in ran.out


def test_nothing_to_quantize_is_shown_not_refused(run, model) -> None:
    ran = run("plan", model, "--exclude", "*")

    assert ran.code == 0
    assert "8 of 8 nodes" in ran.out
    assert "excluded by '*'" in ran.out


def test_a_configuration_file_is_read(run, model) -> None:
    Path("mine.json").write_text('{"name": "mine", "exclude": ["conv1"]}')

    ran = run("plan", model, "--preset", "U8S8", "--config", "mine.json", "--json")

    assert json.loads(ran.out)["preset"] == "mine"
    assert "conv1" in {node["node"] for node in json.loads(ran.out)["float_nodes"]}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="has no parser of TOML")
def test_a_configuration_file_may_be_toml(run, model) -> None:
    Path("mine.toml").write_text('preset = "U8S8"\nexclude = ["conv1"]\n')
    Path("bad.toml").write_bytes(b"\xff\xfe")

    good = run("plan", model, "--config", "mine.toml", "--json")
    bad = run("plan", model, "--config", "bad.toml")

    assert json.loads(good.out)["preset"] == "U8S8"
    assert bad.code == 2
    assert "bad.toml cannot be parsed" in bad.err


def test_a_target_file_is_read(run, model) -> None:
    Path("mine.json").write_text(run("targets", "onnxruntime").out.replace('"Gemm",', ""))

    ran = run("plan", model, "--preset", "U8S8", "--target", "mine.json", "--json")

    assert "classify" in {node["node"] for node in json.loads(ran.out)["float_nodes"]}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "A8W9"), "did you mean 'A8W8'"),
        (("--config", "mine.json"), "did you mean 'activation'"),
        (("--config", "base.json", "--preset", "XINT8"), "starts from preset 'A8W8'"),
        (("--target", "mine.json"), "target file mine.json"),
        (("--output", "no/plan.json"), "make it"),
        (("--output", "model.onnx"), "would overwrite"),
        (("--data", "data.npz"), "unknown option '--data'"),
        (
            ("--preset", "XINT8", "--target", "ryzen-ai", "--skip-rewrite", "clip_to_relu"),
            "no rewrite",
        ),
    ],
)
def test_a_plan_that_cannot_be_made_is_explained(run, model, options, words) -> None:
    Path("mine.json").write_text('{"activatoin": null, "weight": null}')
    Path("base.json").write_text('{"preset": "A8W8"}')

    ran = run("plan", model, *options)

    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_methods_need_something_to_calibrate(run, model) -> None:
    Path("weights.json").write_text(
        '{"activation": null, "weight": {"type":"integer","format":"int8"}}'
    )
    Path("nothing.json").write_text('{"activation": null, "weight": null}')

    activations = run("plan", model, "--config", "weights.json", "--calibration", "mse")
    weights = run("plan", model, "--config", "nothing.json", "--weights", "mse")

    assert "only weights are quantized" in activations.err
    assert "no weights are quantized" in weights.err


# Infer and evaluate


@pytest.fixture
def results(run, model, data) -> tuple[str, str]:
    assert run("quantize", model, "int8.onnx", "--data", data, "--quiet").code == 0
    for name, folder in ((model, "float"), ("int8.onnx", "int8")):
        ran = run("infer", name, "--data", data, "--output", folder, "--limit", 3)
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == f"wrote the outputs of 3 samples to {folder}\n"
    return "float", "int8"


def test_the_table_shows_mean_and_worst(run, results) -> None:
    ran = run("evaluate", *results)

    assert (ran.code, ran.err) == (0, "")
    for word in ("6 results", "cosine similarity", "L2 distance", "PSNR", "0.npz:angle", "1x5"):
        assert word in ran.out


def test_an_evaluation_as_json_is_one_document(run, results) -> None:
    found = json.loads(run("evaluate", *results, "--json").out)

    assert len(found["files"]) == 6
    assert found["files"][0]["ssim"] is None
    assert {row["figure"] for row in found["summary"]} == {"cosine", "l2", "psnr"}


def test_an_evaluation_as_csv_is_a_row_a_file(run, results) -> None:
    rows = list(csv.DictReader(io.StringIO(run("evaluate", *results, "--csv").out)))

    assert len(rows) == 6
    assert 0.9 < float(rows[0]["cosine"]) < 1


@pytest.mark.usefixtures("results")
def test_results_that_cannot_be_had_are_explained(run) -> None:
    np.save("float/7.npy", np.ones(2))

    for words, message in (
        (("evaluate", "float", "int8"), "int8 lacks 7.npy"),
        (("evaluate", "float", "no"), "no does not exist"),
        (("evaluate", "float", "int8", "--json", "--csv"), "give one of the two"),
        (("infer", "model.onnx", "--data", "data.npz", "--output", "int8"), "not an empty folder"),
        (("infer", "model.onnx", "--data", "data.npz"), "--output"),
    ):
        ran = run(*words)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err


def test_infer_writes_what_the_model_gives(run, model, data) -> None:
    ran = run("infer", model, "--data", data, "--output", "out", "--limit", 2, "--quiet", "--fused")

    assert (ran.code, ran.out, ran.err) == (0, "", "")
    first = np.load(data)["image"]
    session = ort.InferenceSession(str(model))
    found = np.load("out/1.npz")
    # Which two of the twelve are taken is up to the data.
    candidates = [session.run(["logits"], {"image": x[None]})[0] for x in first]
    errors = [np.abs(found["logits"] - logits).max() for logits in candidates]
    assert min(errors) < 1e-4
    assert sorted(p.name for p in Path("out").iterdir()) == ["0.npz", "1.npz"]


# Convert


def test_a_file_is_converted_and_its_size_said(run, model) -> None:
    ran = run("convert", model, "bf16.onnx", "--to", "bf16", "--operators")

    assert (ran.code, ran.err) == (0, "")
    size = Path("bf16.onnx").stat().st_size / 1e3
    assert ran.out == f"wrote bf16.onnx in bf16 ({size:.1f} kB)\n"
    domains = {node.domain for node in onnx.load("bf16.onnx").graph.node}
    assert domains == {"", "com.amd.quark"}


@pytest.mark.parametrize(("option", "dtype"), [((), "BFLOAT16"), (("--full-weights",), "FLOAT")])
def test_weights_are_stored_in_16_bits_unless_asked_otherwise(run, model, option, dtype) -> None:
    ran = run("convert", model, "bf16.onnx", "--to", "bf16", "--quiet", *option)

    assert (ran.code, ran.out) == (0, "")
    stored = {t.name: t.data_type for t in onnx.load("bf16.onnx").graph.initializer}
    kinds = {kind for name, kind in stored.items() if name.startswith("w")}
    assert kinds == {onnx.TensorProto.DataType.Value(dtype)}


def test_a_wrong_format_is_named(run) -> None:
    ran = run("convert", "m.onnx", "o.onnx", "--to", "bf17")

    assert (ran.code, ran.out) == (2, "")
    assert "did you mean 'bf16'" in ran.err


def test_the_source_is_not_overwritten(run, model) -> None:
    before = model.read_bytes()

    ran = run("convert", model, model, "--to", "fp16")

    assert ran.code == 2
    assert "would overwrite" in ran.err
    assert model.read_bytes() == before


# Presets and targets


@pytest.mark.parametrize("width", ["80", "160"])
def test_presets_are_listed_by_purpose(run, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", width)

    ran = run("presets")

    assert ran.code == 0
    assert all(name in ran.out for name in PRESETS)
    assert ran.out.index("\nXINT8 ") < ran.out.index("onnxruntime, and every")
    assert ran.out.index("onnxruntime, and every") < ran.out.index("\nU8S8_PERCHANNEL ")
    assert ("int8 sym per-channel mse" in ran.out) == (width == "160")
    assert max(map(len, ran.out.splitlines())) <= int(width)


def test_presets_as_json_are_whole_configurations(run) -> None:
    rows = json.loads(run("presets", "--json").out)

    read = {row["name"]: convert(row["config"], QuantConfig) for row in rows}
    assert read == {name: preset.config for name, preset in PRESETS.items()}
    assert all(row["summary"] for row in rows)


@pytest.mark.parametrize("width", ["80", "160"])
def test_targets_are_listed(run, monkeypatch, width) -> None:
    monkeypatch.setenv("COLUMNS", width)

    ran = run("targets")

    assert all(name in ran.out for name in BUILTIN)
    assert "power-of-two" in ran.out
    assert max(map(len, ran.out.splitlines())) <= int(width)


def test_a_target_as_json_can_be_read_back(run) -> None:
    text = run("targets", "ryzen-ai-cnn").out
    everything = json.loads(run("targets", "--json").out)

    assert msgspec.json.decode(text, type=Target) == BUILTIN["ryzen-ai-cnn"]
    assert [row["name"] for row in everything] == list(BUILTIN)


def test_an_unknown_target_names_the_nearest(run) -> None:
    ran = run("targets", "onnxruntim")

    assert ran.code == 2
    assert "did you mean 'onnxruntime'" in ran.err
