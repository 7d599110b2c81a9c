"""A process killed by SIGKILL in the middle of refinement: --resume ends in the same bytes."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "cifar10"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
# Where the process kills itself: while the third layer is tuned, and with the third layer's file
# written but not yet in its place.
MOMENTS = {
    "tuning": f"""
def tune(self, *arguments, whole=Tuner.tune, calls=itertools.count()):
    found = whole(self, *arguments)
    return {KILL} if next(calls) == 2 else found
Tuner.tune = tune
""",
    "saving": f"""
def replace(old, new, whole=os.replace):
    return {KILL} if os.path.basename(new) == "00002.npz" else whole(old, new)
os.replace = replace
""",
}
CHILD = """
import itertools, os, signal, sys
from lowbit.cli import main
from lowbit.refine.tune import Tuner
{moment}
sys.exit(main(sys.argv[1:]))
"""
CASES = [
    ("tuning", {"type": "adaround", "num_iterations": 20, "batch_size": 2}),
    ("saving", {"type": "adaquant", "num_iterations": 20, "learning_rate": 1e-4}),
]


def _quantize(folder, output, *more, moment=""):
    words = ["quantize", EXAMPLE / "model.onnx", output, "--data", folder / "data.npz"]
    words += [
        "--preset",
        "XINT8",
        "--config",
        folder / "config.json",
        "--quiet",
        "--no-equalize",
        *more,
    ]
    return subprocess.run(
        [sys.executable, "-c", CHILD.format(moment=moment), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize(("moment", "refine"), CASES, ids=[moment for moment, _ in CASES])
def test_a_killed_process_is_resumed_and_ends_in_the_same_bytes(moment, refine, tmp_path):
    images = np.load(EXAMPLE / "calib.npz")["images"][:4]
    pixels = images.transpose(0, 3, 1, 2) if images.shape[-1] == 3 else images
    np.savez(tmp_path / "data.npz", input=pixels.astype(np.float32) / 255)
    (tmp_path / "config.json").write_text(json.dumps({"refinement": refine}))
    whole, output = tmp_path / "whole.onnx", tmp_path / "out.onnx"
    finished = tmp_path / "out.onnx.refining"

    undisturbed = _quantize(tmp_path, whole)
    assert undisturbed.returncode == 0, undisturbed.stderr
    killed = _quantize(tmp_path, output, moment=MOMENTS[moment])
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not output.exists()
    assert [p.name for p in sorted(finished.glob("*.npz"))] == ["00000.npz", "00001.npz"]
    assert len(list(finished.glob("*.part"))) == (moment == "saving")

    resumed = _quantize(tmp_path, output, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert output.read_bytes() == whole.read_bytes()
    assert not finished.exists()
