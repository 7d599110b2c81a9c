"""``lowbit sweep`` writes models, a CSV and a page."""

from __future__ import annotations

import json

import numpy as np
import onnx
from helpers.small_models import small_cnn, small_feeds

from lowbit.cli import main


def test_a_sweep_writes_a_table_and_a_page(tmp_path, capsys) -> None:
    model, data, out = tmp_path / "m.onnx", tmp_path / "d.npz", tmp_path / "out"
    onnx.save(small_cnn(), model)
    feeds = small_feeds(8)
    np.savez(data, **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})

    words = ["sweep", model, "--presets", "A8W8,BF16", "--data", data, "--out", out, "--json"]
    assert main([str(word) for word in words]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert [row["preset"] for row in rows] == ["A8W8", "BF16"]
    assert sorted(path.name for path in out.iterdir()) == [
        "m.A8W8.onnx", "m.BF16.onnx", "sweep.csv", "sweep.html",
    ]  # fmt: skip
    page = (out / "sweep.html").read_text("utf-8")
    assert page.count("<circle") == 2
