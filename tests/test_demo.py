"""The bundled example runs as ``make demo`` runs it, and writes what it says."""

from __future__ import annotations

import pathlib
import runpy
import sys

import pytest

DEMO = pathlib.Path(__file__).parents[1] / "examples/cifar10/demo.py"


@pytest.mark.slow
def test_the_demo_quantizes_and_writes_its_report(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(DEMO)])

    runpy.run_path(str(DEMO), run_name="__main__")

    assert "top-1 on 1000 test images: float 89.6%" in capsys.readouterr().out
    assert "make demo" in (tmp_path / "demo-output/report.html").read_text(encoding="utf-8")
