"""``lowbit inspect`` and ``lowbit bench`` from end to end."""

from __future__ import annotations

import json


def test_inspect_shows_the_model_and_every_target(run, model) -> None:
    ran = run("inspect", model)

    assert ran.code == 0, ran.err
    assert "image: float 1x3x8x8" in ran.out
    assert "8: 2 Conv, 2 Relu, 1 Cos" in ran.out
    for target in ("ryzen-ai ", "ryzen-ai-cnn", "onnxruntime", "vint8"):
        assert target in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_inspect_as_json(run, model) -> None:
    found = json.loads(run("inspect", model, "--json").out)

    assert found["operators"]["Conv"] == 2
    assert {row["target"] for row in found["targets"]} >= {"onnxruntime", "ryzen-ai-cnn"}


def test_bench_compares_models_with_the_first(run, model, data) -> None:
    assert run("quantize", model, "int8.onnx", "--data", data, "--quiet").code == 0

    ran = run("bench", model, "int8.onnx", "--runs", 7, "--threads", 1)
    found = json.loads(run("bench", model, "int8.onnx", "--runs", 6, "--json").out)

    assert ran.code == 0, ran.err
    assert "7 runs of each" in ran.out
    assert [row["runs"] for row in found] == [6, 6]
    assert found[0]["ratio"] == 1
    assert all(row["low_ms"] <= row["median_ms"] <= row["high_ms"] for row in found)


def test_what_cannot_be_run_is_named(run, model) -> None:
    twice = run("bench", model, model)
    nowhere = run("bench", model, "--provider", "CPUExecutionProvder")

    assert (twice.code, nowhere.code) == (2, 2)
    assert "given twice" in twice.err
    assert "did you mean 'CPUExecutionProvider'" in nowhere.err


def test_completion_is_printed(run) -> None:
    ran = run("--completion", "bash")

    assert ran.code == 0
    assert "XINT8_ACCURATE" in ran.out
    assert run("--completion", "tcsh").code == 2
