"""``lowbit infer`` and ``lowbit evaluate``."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest


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


def test_json_is_one_document(run, results) -> None:
    found = json.loads(run("evaluate", *results, "--json").out)

    assert len(found["files"]) == 6
    assert found["files"][0]["ssim"] is None
    assert {row["figure"] for row in found["summary"]} == {"cosine", "l2", "psnr"}


def test_csv_is_a_row_a_file(run, results) -> None:
    rows = list(csv.DictReader(io.StringIO(run("evaluate", *results, "--csv").out)))

    assert len(rows) == 6
    assert 0.9 < float(rows[0]["cosine"]) < 1


@pytest.mark.usefixtures("results")
def test_what_is_wrong_is_explained(run) -> None:
    np.save("float/7.npy", np.ones(2))

    for words, message in (
        (("evaluate", "float", "int8"), "int8 lacks 7.npy"),
        (("evaluate", "float", "no"), "no does not exist"),
        (("evaluate", "float", "int8", "--json", "--csv"), "leave out one"),
        (("infer", "model.onnx", "--data", "data.npz", "--output", "int8"), "not an empty folder"),
        (("infer", "model.onnx", "--data", "data.npz"), "--output"),
    ):
        ran = run(*words)
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err
