"""``lowbit compare``."""

from __future__ import annotations

import json

import onnx
import pytest


@pytest.fixture
def quantized(run, model, data) -> str:
    assert run("quantize", model, "int8.onnx", "--data", data, "--limit", 8, "--quiet").code == 0
    return "int8.onnx"


def test_shows_outputs_and_layers(run, model, quantized, data) -> None:
    ran = run("compare", model, quantized, "--data", data, "--limit", 3)

    assert ran.code == 0, ran.err
    assert ran.err == ""
    for word in ("A8W8 for ryzen-ai", "on 3 samples", "logits", "angle", "worst layers", "r1"):
        assert word in ran.out


def test_json_is_one_complete_document(run, model, quantized, data) -> None:
    ran = run("compare", model, quantized, "--data", data, "--json")

    report = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert report["reference"] == str(model)
    assert report["quantized_model"] == quantized
    assert report["verification_samples"] == 12
    assert {score["tensor"] for score in report["outputs"]} == {"logits", "angle"}
    assert report["layers"]


def test_a_model_is_exactly_itself(run, model, data) -> None:
    ran = run("compare", model, model, "--data", data)

    assert ran.code == 0, ran.err
    assert "exact" in ran.out


def test_an_unrelated_model_is_refused(run, model, data) -> None:
    other = onnx.load(model)
    del other.graph.output[1]
    onnx.save(other, "other.onnx")

    ran = run("compare", model, "other.onnx", "--data", data)

    assert (ran.code, ran.out) == (2, "")
    assert "no output 'angle'" in ran.err


@pytest.mark.usefixtures("quantized")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "mode.onnx", "int8.onnx", "--data", "data.npz"), "did you mean 'model.onnx'"),
        (("compare", "model.onnx", "no.onnx", "--data", "data.npz"), "no such model: no.onnx"),
        (("compare", "model.onnx", "int8.onnx"), "--data"),
        (("compare", "model.onnx", "int8.onnx", "--data", "no.npz"), "does not exist"),
        (("compare", "model.onnx", "int8.onnx", "--data", "data.npz", "--std", "0"), "std"),
    ],
)
def test_what_is_wrong_is_explained(run, words, message) -> None:
    ran = run(*words)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
