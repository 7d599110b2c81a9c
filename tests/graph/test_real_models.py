"""The normal form of real models computes what the original does.

Set LOWBIT_ASSETS to a folder with models/*.onnx to run these.
"""

from __future__ import annotations

import os
import pathlib

import numpy as np
import onnxruntime as ort
import pytest

from lowbit.graph import io
from lowbit.normalize.normalize import normalize

ASSETS = os.environ.get("LOWBIT_ASSETS")
MODELS = sorted(pathlib.Path(ASSETS, "models").glob("*.onnx")) if ASSETS else []

# Sizes of the axes that models leave open, by how a file is called.
OPEN_SIZES = {"det": (1, 3, 96, 96), "rec": (1, 3, 48, 160)}


def _feed(session: ort.InferenceSession, name: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    sizes = next((size for word, size in OPEN_SIZES.items() if word in name), (1,) * 8)
    feed = {}
    for value in session.get_inputs():
        shape = [d if isinstance(d, int) else sizes[axis] for axis, d in enumerate(value.shape)]
        feed[value.name] = rng.normal(size=shape).astype(np.float32)
    return feed


@pytest.mark.skipif(not MODELS, reason="LOWBIT_ASSETS names no folder with models/*.onnx")
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_real_model_computes_the_same(path: pathlib.Path) -> None:
    original = ort.InferenceSession(path)
    feed = _feed(original, path.stem)
    loaded = io.load(path)

    normal = normalize(loaded)

    assert normal.graph.num_nodes() <= loaded.graph.num_nodes()
    with io.as_file(normal) as written:
        results = ort.InferenceSession(written).run(None, feed)
    for expected, actual in zip(original.run(None, feed), results, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
