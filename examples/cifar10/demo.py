"""Quantize the bundled network with XINT8, measure its accuracy before and after, write a report.

python examples/cifar10/demo.py [PRESET]
"""

from __future__ import annotations

import pathlib
import sys
import time

import numpy as np
import onnxruntime as ort

import lowbit
from lowbit.api.compare import examine
from lowbit.report.html import write_report
from lowbit.report.result import show_result
from lowbit.report.tables import stdout

HERE = pathlib.Path(__file__).resolve().parent
OUTPUT = pathlib.Path("demo-output")
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def read(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the network's inputs and the labels of a bundled set."""
    data = np.load(HERE / name)
    pixels = (data["images"] / 255 - MEAN) / STD
    return pixels.transpose(0, 3, 1, 2).astype(np.float32), data["labels"]


def accuracy(model: pathlib.Path, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of images a model gets right, with exact integer arithmetic."""
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(model, options)
    logits = session.run(None, {"input": images})[0]
    return float((logits.argmax(axis=1) == labels).mean())


def main() -> None:
    """Run the demonstration."""
    preset = sys.argv[1] if len(sys.argv) > 1 else "XINT8"
    OUTPUT.mkdir(exist_ok=True)
    quantized = OUTPUT / f"cifar10_{preset.lower()}.onnx"
    calibration, _ = read("calib.npz")
    start = time.perf_counter()
    result = lowbit.quantize(
        HERE / "model.onnx",
        quantized,
        data=[{"input": image[None]} for image in calibration],
        limit=len(calibration) - 8,
        verify=8,
        preset=preset,
    )
    seconds = time.perf_counter() - start
    show_result(stdout(), result.report, str(quantized))
    report = examine(HERE / "model.onnx", result)
    (OUTPUT / "report.json").write_bytes(report.to_json())
    write_report(
        report, OUTPUT / "report.html", title=quantized.name, command=f"make demo  # {preset}"
    )
    images, labels = read("test.npz")
    before = accuracy(HERE / "model.onnx", images, labels)
    after = accuracy(quantized, images, labels)
    print(f"top-1 on {len(labels)} test images: float {before:.1%}, {preset} {after:.1%}")
    print(
        f"quantized in {seconds:.1f} s; wrote {quantized}, {OUTPUT / 'report.json'} and {OUTPUT / 'report.html'}"
    )


if __name__ == "__main__":
    main()
