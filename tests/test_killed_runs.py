"""A run that is killed at any change it makes to the output's folder leaves a complete set of files.

The old one or the new one: never a graph with another one's weights, half a file, or nothing. And
whatever it left, the next run succeeds, also with --resume, and clears it away.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
from helpers.chain_models import chain, smooth

HELPER = pathlib.Path(__file__).parent / "helpers" / "killing.py"

CHECK = """
import json, onnx, hashlib
def digest(path):
    model = onnx.load(path)
    return [hashlib.sha256(t.raw_data).hexdigest() for t in model.graph.initializer]
known = [digest(before / "out.onnx"), digest(after / "out.onnx")]
assert known[0] != known[1]
found = digest(folder / "out.onnx")
assert found in known, (moment, "neither the old nor the new weights")
report = folder / "report.json"
if report.exists():
    json.loads(report.read_text())
code = run([*words, *(["--resume"] if "quantize" in words and moment % 2 else [])])
assert code == 0, (moment, "the next run ended with", code)
assert digest(folder / "out.onnx") == known[1], (moment, "another result")
left = sorted(p.name for p in folder.iterdir() if "lowbit" in p.name or "refining" in p.name)
assert left == [], (moment, left)
"""


def _environment() -> dict[str, str]:
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def _every_moment(folder: pathlib.Path, words: list[str]) -> int:
    """Kill the command at every change; return how many there are."""
    check = folder.parent / "check.py"
    check.write_text(CHECK)
    ran = subprocess.run(
        [sys.executable, str(HELPER), str(folder), str(check), *words],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    """Return a folder with a model, data and an output of before."""
    folder = tmp_path / "run"
    folder.mkdir()
    onnx.save(chain(2, channels=4), folder / "m.onnx")
    np.savez(folder / "x.npz", x=np.concatenate([feed["x"] for feed in smooth(2)]))
    config = {"keep_only_if_better": False, "equalization": None}
    (folder / "c.json").write_text(json.dumps(config))
    onnx.save(chain(1), folder / "out.onnx")
    return folder


QUANTIZE = ["quantize", "m.onnx", "out.onnx", "--data", "x.npz", "--config", "c.json", "--quiet"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_one_file_a_report_and_a_checkpoint(folder) -> None:
    words = [*QUANTIZE, "--preset", "A8W8", "--report", "report.json"]

    # Folders of the checks, the checkpoint with two layers, the report, the model.
    assert _every_moment(folder, words) > 20


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_two_files(folder) -> None:
    for name, seed in (("m.onnx", 1), ("out.onnx", 2)):
        model = chain(2, channels=4, seed=seed)
        model.producer_name = "lowbit"
        (folder / name).unlink()
        location = f"{name}.data"
        onnx.save(
            model, folder / name, save_as_external_data=True, location=location, size_threshold=0
        )

    # onnx's own file in two parts, then a new graph with new weights.
    assert _every_moment(folder, ["convert", "m.onnx", "out.onnx", "--to", "fp16"]) > 8
