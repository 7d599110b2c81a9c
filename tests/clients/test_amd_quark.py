"""The same script gives the same model with amd-quark and with lowbit.

QUARK_PYTHON names a Python that has amd-quark 0.13 (``make clients`` builds one), LOWBIT_ASSETS a
folder with models (``yolov8n.onnx``) and images.
"""

from __future__ import annotations

import os
import pathlib
import subprocess

import numpy as np
import onnx
import pytest
from helpers.quark_cases import DATA, Quantized, differences, read_quantized
from helpers.quark_helpers import run_python
from PIL import Image

QUARK = os.environ.get("QUARK_PYTHON")
ASSETS = os.environ.get("LOWBIT_ASSETS")
pytestmark = [
    pytest.mark.skipif(not QUARK, reason="QUARK_PYTHON names no Python with amd-quark"),
    pytest.mark.slow,
]
SCRIPT = str(pathlib.Path(__file__).parent / "quark_script.py")
PRESETS = ("XINT8", "A8W8", "A16W8", "U8S8_AAWS", "INT8_CNN_DEFAULT", "INT16_CNN_DEFAULT")


def _both(folder: pathlib.Path, model: str, preset: str, *more: str) -> tuple[Quantized, Quantized]:
    """Return what AMD Quark and what lowbit makes of a model, on the images in a folder."""
    theirs = subprocess.run(
        [str(QUARK), SCRIPT, model, "theirs.onnx", preset, "images.npy", *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (folder / "theirs.onnx").exists(), theirs.stderr[-2000:]
    arguments = (SCRIPT, model, "ours.onnx", preset, "images.npy", *more)
    ours = run_python("-m", "lowbit.quark", *arguments, cwd=folder)
    assert ours.returncode == 0, ours.stderr[-2000:]
    made = (onnx.load(folder / f"{name}.onnx") for name in ("theirs", "ours"))
    return tuple(read_quantized(model) for model in made)  # type: ignore[return-value]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_on_a_small_network(preset: str, tmp_path: pathlib.Path) -> None:
    with np.load(DATA / "calib.npz") as stored:
        np.save(tmp_path / "images.npy", stored["input"])

    theirs, ours = _both(tmp_path, str(DATA / "float.onnx"), preset)

    # Float sums in another order move a scale in its last bits; powers of two do not move.
    assert set(ours.activations) == set(theirs.activations)
    for name, (scale, point) in theirs.activations.items():
        np.testing.assert_allclose(ours.activations[name][0], scale, rtol=1e-5)
        np.testing.assert_array_equal(ours.activations[name][1], point)
    for key, (codes, scale, _) in theirs.constants.items():
        np.testing.assert_allclose(ours.constants[key][1].reshape(-1), scale.reshape(-1), rtol=1e-5)
        off = np.abs(ours.constants[key][0].astype(np.int64) - codes.astype(np.int64))
        allowed = 0 if preset == "XINT8" else 1 + 1e-5 * np.abs(codes.astype(np.float64))
        assert (off <= allowed).all(), key


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a folder with YOLOv8n, once in a file and once with its weights apart, and images."""
    found = pathlib.Path(ASSETS or "", "models", "yolov8n.onnx")
    if not ASSETS or not found.exists():
        pytest.skip("LOWBIT_ASSETS names no folder with models/yolov8n.onnx")
    folder = tmp_path_factory.mktemp("detector")
    images = sorted(pathlib.Path(ASSETS, "coco128", "images").rglob("*.jpg"))[:2]
    arrays = [
        np.asarray(Image.open(p).convert("RGB").resize((640, 640)), np.float32) for p in images
    ]
    np.save(folder / "images.npy", [a.transpose(2, 0, 1)[None] / 255 for a in arrays])
    model = onnx.load(found)
    onnx.save(model, folder / "model.onnx")
    onnx.save(model, folder / "apart.onnx", save_as_external_data=True, location="apart.data")
    return folder


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("model.onnx", ()),
        ("model.onnx", ("/model.22/Concat,/model.22/Concat_1", "/model.22/Concat_3")),
        ("apart.onnx", ("--external",)),
    ],
)
def test_xint8_on_a_detector(detector: pathlib.Path, model: str, more: tuple[str, ...]) -> None:
    theirs, ours = _both(detector, model, "XINT8", *more)

    assert len(theirs.activations) > 200
    assert differences(ours.activations, theirs.activations) == set()
    assert differences(ours.constants, theirs.constants) == set()
