"""The code of the notebooks runs as a script, and what they say they printed is what it prints."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import re

import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def _cells(path: pathlib.Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def _printed(cell: dict) -> str:
    streams = [out for out in cell["outputs"] if out["output_type"] == "stream"]
    return "".join("".join(out["text"]) for out in streams)


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(FOLDER)
    names: dict[str, object] = {}
    for cell in _cells(path):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile("".join(cell["source"]), path.name, "exec"), names)  # noqa: S102
        shown, printed = _printed(cell), out.getvalue()
        assert _NUMBER.sub("#", printed) == _NUMBER.sub("#", shown)
        for ours, theirs in zip(_NUMBER.findall(printed), _NUMBER.findall(shown), strict=True):
            # Last digits depend on the processor, and with them which of two nearly equal scales is chosen.
            assert float(ours) == pytest.approx(float(theirs), rel=0.1, abs=0.6)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_was_executed(path: pathlib.Path) -> None:
    assert path.stat().st_size < 20_000
    assert all(cell["execution_count"] for cell in _cells(path))
    assert any(_printed(cell) for cell in _cells(path))
