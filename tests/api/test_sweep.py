"""One row for each model and preset; what is finished is not done again."""

from __future__ import annotations

import csv
import io
import pathlib

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.api import sweep as module
from lowbit.api.sweep import sweep, sweep_csv
from lowbit.errors import ConfigError
from lowbit.pipeline import normalizing


@pytest.fixture
def models(tmp_path: pathlib.Path) -> list[str]:
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for path in paths:
        onnx.save(small_cnn(), path)
    return [str(path) for path in paths]


def test_every_pair_has_a_row_that_a_run_by_itself_confirms(models, tmp_path) -> None:
    data = small_feeds(12)

    rows = sweep(
        models, presets=["A8W8", "BF16"], data=data, out=str(tmp_path / "out"), timed=False
    )

    assert [(row.model, row.preset) for row in rows] == [
        (m, p) for m in ("a.onnx", "b.onnx") for p in ("A8W8", "BF16")
    ]
    single = lowbit.quantize(models[0], data=data, preset="A8W8")
    assert rows[0].level == single.report.verdict.level
    assert rows[0].size_after == single.report.size_after
    assert rows[0].float_share == 0.0
    written = onnx.load(tmp_path / "out" / "a.A8W8.onnx")
    assert written.graph.node == single.model.graph.node


def test_one_model_and_one_preset_need_no_lists(models) -> None:
    (row,) = sweep(models[0], presets="BF16", data=small_feeds(4), timed=False)

    assert (row.model, row.preset) == ("a.onnx", "BF16")


def test_a_second_sweep_does_only_what_is_new(models, tmp_path, monkeypatch) -> None:
    made = []
    real = module.quantize
    monkeypatch.setattr(module, "quantize", lambda *a, **k: made.append(1) or real(*a, **k))
    options = {"data": small_feeds(8), "state_dir": str(tmp_path / "state"), "timed": False}

    first = sweep(models[:1], presets=["A8W8"], **options)
    again = sweep(models[:1], presets=["A8W8", "BF16"], **options)

    assert len(made) == 2
    assert again[0] == first[0]


def test_a_model_is_normalized_once_for_its_presets_and_comes_out_the_same(
    models, tmp_path, monkeypatch
) -> None:
    normalized = []
    real = normalizing.normalized_model
    monkeypatch.setattr(
        normalizing, "normalized_model", lambda state: normalized.append(1) or real(state)
    )
    presets, out = ["A8W8", "XINT8", "A16W8"], str(tmp_path / "out")

    sweep(models, presets=presets, data=small_feeds(8), out=out, timed=False)

    assert len(normalized) == len(models)
    for preset in presets:
        alone = lowbit.quantize(models[1], data=small_feeds(8), preset=preset)
        written = onnx.load(tmp_path / "out" / f"b.{preset}.onnx")
        assert written.SerializeToString() == alone.model.SerializeToString()


def test_what_a_preset_refuses_is_told_and_the_others_go_on(models, tmp_path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")

    rows = sweep([str(broken), models[0]], presets=["BF16"], data=small_feeds(4), timed=False)

    assert rows[0].refused
    assert rows[1].level == "good"


def test_the_table_as_csv_has_a_line_for_each_row(models) -> None:
    rows = sweep(models[:1], presets=["A8W8", "BF16"], data=small_feeds(4), timed=False)

    lines = list(csv.DictReader(io.StringIO(sweep_csv(rows))))

    assert [line["preset"] for line in lines] == ["A8W8", "BF16"]
    assert float(lines[0]["sqnr_db"]) == rows[0].sqnr_db


def test_presets_are_checked_before_any_work(models) -> None:
    with pytest.raises(ConfigError, match="unknown preset 'A9W9'"):
        sweep(models, presets=["A9W9"], data="random")
    with pytest.raises(ConfigError, match="at least one preset"):
        sweep(models, presets=[], data="random")


def test_accuracy_is_measured_on_samples_that_were_not_calibrated_on(models, tmp_path) -> None:
    feeds = small_feeds(20)
    np.savez(tmp_path / "d.npz", input=np.concatenate([feed["input"] for feed in feeds]))
    np.save(tmp_path / "labels.npy", np.arange(20) % 5)

    (row,) = sweep(
        models[:1],
        presets=["A8W8"],
        data=str(tmp_path / "d.npz"),
        limit=8,
        labels=str(tmp_path / "labels.npy"),
        timed=False,
    )

    (top,) = row.accuracy
    assert top.samples == 12
    calibrated = lowbit.quantize(models[0], data=str(tmp_path / "d.npz"), limit=8).samples
    others = sorted(calibrated.held_out)
    session = ort.InferenceSession(models[0])
    hits = [session.run(None, feeds[i])[0].argmax() == i % 5 for i in others]
    assert top.float_score == pytest.approx(100 * np.mean(hits))
    line = next(csv.DictReader(io.StringIO(sweep_csv([row]))))
    assert float(line["accuracy"]) == top.quantized_score
    assert float(line["drop"]) == pytest.approx(top.gap)


def test_another_sweep_reads_the_data_once(models, tmp_path, monkeypatch) -> None:
    feeds = small_feeds(6)
    np.savez(tmp_path / "d.npz", input=np.concatenate([feed["input"] for feed in feeds]))
    options = {"data": str(tmp_path / "d.npz"), "state_dir": str(tmp_path / "s"), "timed": False}
    want = sweep(models, presets=["A8W8", "BF16"], **options)
    opened = []
    real = module.open_data
    monkeypatch.setattr(module, "open_data", lambda *a, **k: opened.append(1) or real(*a, **k))

    assert sweep(models, presets=["A8W8", "BF16"], **options) == want
    assert len(opened) <= len(models)
