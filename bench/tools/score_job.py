"""How good a model is on labelled images, with exact integer arithmetic.

``reference`` is the float model's answers: written if it is missing, else compared with.
"""

from __future__ import annotations

import pathlib

import numpy as np
import onnxruntime as ort
from common import Watch, answer, request

asked, watch = request(), Watch()
options = ort.SessionOptions()
# On x86 without VNNI the fused kernels saturate otherwise, and make every model look worse.
options.add_session_config_entry("session.x64quantprecision", "1")
try:
    session = ort.InferenceSession(asked["model"], options)
except Exception:
    # Models in bfloat16 may need AMD's own operators, which are compiled where Quark is.
    from quark.onnx import get_library_path

    options.register_custom_ops_library(get_library_path())
    session = ort.InferenceSession(asked["model"], options)

images, labels = np.load(asked["images"], mmap_mode="r"), np.load(asked["labels"])
fixed = session.get_inputs()[0].shape[0]
batch = fixed if isinstance(fixed, int) else 20
rows = []
for start in range(0, len(images), batch):
    part = np.ascontiguousarray(images[start : start + batch])
    rows.append(session.run(None, {asked["input"]: part})[0].reshape(len(part), -1))
logits = np.concatenate(rows).astype(np.float64)
reference = pathlib.Path(asked["reference"])
if not reference.exists():
    np.save(reference, logits)
floats = np.load(reference)
noise = float(((logits - floats) ** 2).sum())
sqnr = 10 * np.log10(float((floats**2).sum()) / noise) if noise else None


def log_softmax(rows):
    """Return the logarithms of the probabilities of each row's classes."""
    rows = rows - rows.max(1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(1, keepdims=True))


expected, found = log_softmax(floats), log_softmax(logits)
divergence = (np.exp(expected) * (expected - found)).sum(1)
right, was_right = logits.argmax(1) == labels, floats.argmax(1) == labels
gap = right.astype(float) - was_right
answer(
    watch,
    "onnxruntime",
    images=len(labels),
    score=100 * float(right.mean()),
    gap=100 * float(gap.mean()),
    gap_error=100 * float(gap.std() / len(gap) ** 0.5),
    kl=float(divergence.mean()),
    kl_error=float(divergence.std() / len(divergence) ** 0.5),
    sqnr_db=sqnr,
)
