"""Draw what ``lowbit quantize`` prints on the bundled network, as docs/quantize.svg: ``python -m bench.terminal``."""

from __future__ import annotations

import contextlib
import io
import pathlib
import tempfile

import numpy as np
from PIL import Image
from rich.console import Console

import lowbit
from lowbit.report.summary import show_summary

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = "lowbit quantize model.onnx int8.onnx --preset XINT8 --data images/ --preprocess imagenet --crop 32 --resize 32 --limit 64"
NEXT = "add --report page.html to see which tensors cause the error, and what would lower it"


def draw() -> str:
    """Return the picture."""
    example = ROOT / "examples" / "cifar10"
    console = Console(record=True, width=100, file=io.StringIO(), highlight=False)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pathlib.Path("images").mkdir()
        for index, pixels in enumerate(np.load(example / "calib.npz")["images"]):
            Image.fromarray(pixels).save(f"images/{index:03}.png")
        preprocessing = lowbit.Preprocessing(
            mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), resize=32, crop=32
        )
        result = lowbit.quantize(
            example / "model.onnx",
            data="images",
            preprocessing=preprocessing,
            preset="XINT8",
            limit=64,
        )
        show_summary(console, result.report, "int8.onnx", NEXT)
    return console.export_svg(title=COMMAND)


if __name__ == "__main__":
    (ROOT / "docs" / "quantize.svg").write_text(draw(), encoding="utf-8")
