"""How good a model is by a metric of the assets' own: mAP of a detector, Spearman of an encoder.

``reference`` keeps the float model's score and its first outputs, to compare with.
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import onnxruntime as ort
from common import Watch, answer, request

asked, watch = request(), Watch()
sys.path.insert(0, asked["assets"])
import assets  # noqa: E402

_KEPT = 16


class Recorder:
    """A session that keeps its first outputs."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self.get_inputs = session.get_inputs
        self.outputs: list[np.ndarray] = []

    def run(self, names, feed):
        """Run the model as the session would."""
        found = self._session.run(names, feed)
        if len(self.outputs) < _KEPT:
            self.outputs.append(found[0].ravel())
        return found


def mean_average_precision(session) -> float:
    """Return mAP50-95 in percent."""
    return float(assets.yolo_map(session)["mAP"])


options = ort.SessionOptions()
options.add_session_config_entry("session.x64quantprecision", "1")
recorder = Recorder(ort.InferenceSession(asked["model"], options))
measure = {"mAP50-95": mean_average_precision, "Spearman": assets.spearman}[asked["metric"]]
score, outputs = float(measure(recorder)), np.concatenate(recorder.outputs).astype(np.float64)
reference = pathlib.Path(asked["reference"]).with_suffix(".npz")
if not reference.exists():
    np.savez(reference, score=score, outputs=outputs)
floats = np.load(reference)
noise = float(((outputs - floats["outputs"]) ** 2).sum())
answer(
    watch,
    "onnxruntime",
    images=asked["count"],
    score=score,
    gap=score - float(floats["score"]),
    sqnr_db=10 * np.log10(float((floats["outputs"] ** 2).sum()) / noise) if noise else None,
)
