"""``lowbit compare``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    """What was quantized, once for all tests: they only read it."""
    return {}


@pytest.fixture
def quantized(run, model, data, folder, made) -> str:
    words = ("quantize", model, "int8.onnx", "--data", data, "--limit", 8, "--quiet")
    if not made:
        assert run(*words).code == 0
        made["int8.onnx"] = (folder / "int8.onnx").read_bytes()
    (folder / "int8.onnx").write_bytes(made["int8.onnx"])
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


def test_several_models_are_compared_with_one(run, model, quantized, data) -> None:
    run("quantize", model, "wide.onnx", "--data", data, "--preset", "A16W8", "--quiet")
    words = ("compare", model, quantized, "wide.onnx", "--data", data, "--limit", 3)

    ran = run(*words, "--report", "both.html")
    rows = json.loads(run(*words, "--json").out)

    assert ran.code == 0, ran.err
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[:2] for line in lines if line[:1] and line[0].endswith(".onnx")] == [
        ["int8.onnx", "A8W8"],
        ["wide.onnx", "A16W8"],
    ]
    assert [row["quantized_model"] for row in rows] == [quantized, "wide.onnx"]
    page = Path("both.html").read_text()
    assert '"title":"int8.onnx"' in page
    assert '"title":"wide.onnx"' in page
    gated = run(*words, "--fail-if", "sqnr<1")
    assert (gated.code, gated.out) == (2, "")
    assert "for one quantized model" in gated.err
    assert "given twice" in run("compare", model, quantized, quantized, "--data", data).err


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


def test_a_page_and_junit_are_written_and_a_failed_gate_is_an_exit_code(
    run, model, quantized, data, folder
) -> None:
    (folder / "labels.txt").write_text(" ".join("01234" * 3)[:23])
    words = ("compare", model, quantized, "--data", data, "--labels", "labels.txt")

    good = run(*words, "--fail-if", "sqnr<1", "--junit", "j.xml", "--report", "r.html", "--time")
    bad = run(*words, "--fail-if", "sqnr<100", "--fail-if", "top1<0", "--junit", "k.xml")

    assert (good.code, good.err) == (0, "")
    assert "top1 %" in good.out
    assert " ms" in good.out
    assert "<!doctype html>" in (folder / "r.html").read_text()
    assert 'failures="0"' in (folder / "j.xml").read_text()
    assert bad.code == 3
    assert "1 of 2 gates failed: sqnr<100" in bad.err
    assert 'failures="1"' in (folder / "k.xml").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--fail-if", "sqnr=3"), "not of the form"),
        (("--fail-if", "top1_drop>1"), "accuracy needs"),
        (("--junit", "j.xml"), "at least one --fail-if"),
        (("--metric", "m:f"), "no labels"),
        (("--budget", "much"), "'much' is unknown"),
        (("--tolerance", "0"), "not above zero"),
    ],
)
def test_gates_and_labels_that_cannot_be(run, model, quantized, data, words, message) -> None:
    ran = run("compare", model, quantized, "--data", data, *words)

    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err


def test_the_budget_names_tensors_and_suggested_fixes(run, model, quantized, data) -> None:
    ran = run("compare", model, quantized, "--data", data, "--budget", "full")

    for word in ("error budget", "suggested fixes", "to 16 bits, measured together", '"tensors"'):
        assert word in ran.out


def test_a_report_that_is_no_page_is_the_printed_document(run, model, quantized, data) -> None:
    ran = run("compare", model, quantized, "--data", data, "--json", "--report", "r.json")

    assert ran.code == 0
    assert Path("r.json").read_text() == ran.out


def test_a_new_run_with_promoted_tensors_is_told(run, model, quantized, data) -> None:
    ran = run("compare", model, quantized, "--data", data, "--retry", data)

    assert (ran.code, ran.err) == (0, "")
    assert re.search(r"quantized again with it: \d+\.\d\d dB", ran.out)


def test_no_input_of_a_comparison_is_overwritten(run, model, quantized, data) -> None:
    before = Path(quantized).read_bytes()

    ran = run("compare", model, quantized, "--data", data, "--report", quantized)

    assert (ran.code, ran.out) == (2, "")
    assert "--report int8.onnx would overwrite int8.onnx" in ran.err
    assert Path(quantized).read_bytes() == before


def test_a_metric_is_found_beside_the_user(run, model, quantized, data, folder) -> None:
    (folder / "peak_metric.py").write_text(
        "def highest(outputs, label):\n    return float(outputs['logits'].max())\n"
    )
    (folder / "labels.txt").write_text("0 " * 12)
    words = ("--labels", "labels.txt", "--metric", "peak_metric:highest", "--json")

    ran = run("compare", model, quantized, "--data", data, "--budget", "none", *words)

    (row,) = json.loads(ran.out)["accuracy"]
    assert (row["name"], row["unit"], row["samples"]) == ("highest", "", 12)
