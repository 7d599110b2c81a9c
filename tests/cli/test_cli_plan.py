"""``lowbit plan``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest


def test_shows_decisions_and_what_stays_in_float_without_data(run, model) -> None:
    ran = run("plan", model, "--preset", "XINT8")

    assert ran.code == 0, ran.err
    assert ran.err == ""
    for word in ("XINT8 for ryzen-ai-cnn", "activations", "weights", "biases", "int8 sym pow2 mse"):
        assert word in ran.out
    assert "output of Relu relu1" in ran.out
    assert "bias of Conv conv1" in ran.out
    assert "1 of 8 nodes" in ran.out
    assert "does not run Cos quantized" in ran.out
    assert "stays in float, on the CPU" in ran.out
    assert "cosine" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_all_lists_every_float_node(run, model) -> None:
    assert "cosine" in run("plan", model, "--all").out


def test_a_wide_terminal_gets_a_line_a_tensor(run, model, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")

    lines = run("plan", model, "--preset", "U8S8").out.splitlines()

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
        (("--preset", "XINT8", "--target", "ryzen-ai", "--without", "clip_to_relu"), "no rewrite"),
    ],
)
def test_what_is_wrong_is_explained(run, model, options, words) -> None:
    Path("mine.json").write_text('{"activatoin": null, "weight": null}')
    Path("base.json").write_text('{"preset": "A8W8"}')

    ran = run("plan", model, *options)

    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_methods_need_something_to_calibrate(run, model) -> None:
    Path("weights.json").write_text(
        '{"activation": null, "weight": {"type":"tensor","format":"int8"}}'
    )
    Path("nothing.json").write_text('{"activation": null, "weight": null}')

    activations = run("plan", model, "--config", "weights.json", "--calibration", "mse")
    weights = run("plan", model, "--config", "nothing.json", "--weights", "mse")

    assert "only weights are quantized" in activations.err
    assert "no weights are quantized" in weights.err
