"""The models and their data, laid out as files that every tool reads alike.

The bundled example is always there. Larger models and labelled images come from the folder that
``LOWBIT_ASSETS`` names (a module ``assets`` with ``MODELS`` and ``imagenet``), and models that are not
in it from ``LOWBIT_MODELS``; they are never copied into the project.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import os
import pathlib
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from bench import segmentation

EXAMPLE, YOLO, MINILM, SEGMENTATION = "example", "yolov8n", "minilm", "segmentation"
TOP1 = "top-1"
_EXAMPLE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "cifar10"
_YOLO_IMAGES, _SEGMENTATION_IMAGES = 32, 48
_MEAN, _STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


@dataclasses.dataclass(frozen=True)
class Subject:
    """A model with samples to calibrate on, and labelled images to judge by where there are any."""

    name: str
    model: str
    input: str
    samples: str
    count: int
    images: str = ""
    labels: str = ""
    metric: str = TOP1
    judged: int = 0
    attention: bool = False


def available(names: Iterable[str]) -> list[str]:
    """Return those of the models that can be had here, with a word about the others."""
    found = []
    for name in names:
        if name in (EXAMPLE, SEGMENTATION) or os.environ.get("LOWBIT_ASSETS"):
            found.append(name)
        else:
            print(f"{name} skipped: LOWBIT_ASSETS does not name the folder it is in")
    return found


def subject(name: str, samples: int, images: int, work: pathlib.Path) -> Subject:
    """Write the data of a model to files, unless they are there, and return it all."""
    folder = work / "data" / name
    if name in (YOLO, MINILM):
        return _by_own_metric(name, samples, folder)
    if name == SEGMENTATION:
        rows = segmentation.images(min(samples, _SEGMENTATION_IMAGES))
        return made(name, segmentation.segmentation_network(), rows, work)
    if name == EXAMPLE:
        model, input_name = example_model(), "input"
    else:
        known = _assets().MODELS[name]
        model, input_name = known["path"], known["input"]
    return Subject(
        name,
        model,
        input_name,
        str(_write_samples(folder / f"calib-{samples}", lambda: _calibration(name, samples))),
        samples,
        *map(str, _write_images(folder / f"val-{images}", name, images)),
    )


def _by_own_metric(name: str, samples: int, folder: pathlib.Path) -> Subject:
    """Return a detector or an encoder, which the assets score by other figures than top-1."""
    folder.mkdir(parents=True, exist_ok=True)
    assets = _assets()
    if name == MINILM:
        rows = _write_feeds(folder / f"calib-{samples}", assets.sentences(samples))
        path, judged = assets.minilm(str(folder)), 1500
        figures = {"metric": "Spearman", "judged": judged, "attention": True}
        return Subject(name, path, "input_ids", str(rows), samples, **figures)
    known, count = assets.MODELS[name], min(samples, _YOLO_IMAGES)
    images = (known["preprocess"](image)[None] for image, _ in assets.coco())
    rows = _write_samples(folder / f"calib-{count}", lambda: itertools.islice(images, count))
    path = pathlib.Path(os.environ.get("LOWBIT_MODELS", ""), "yolov8n.onnx")
    path = path if path.is_file() else pathlib.Path(known["path"])
    return Subject(name, str(path), known["input"], str(rows), count, metric="mAP50-95", judged=128)


def made(name: str, model: bytes, rows: Iterable[np.ndarray], work: pathlib.Path) -> Subject:
    """Write a model that was made up, and its samples, to files and return them."""
    folder = work / "data" / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model)
    samples = _write_samples(folder / "calib", lambda: rows)
    return Subject(name, str(path), "x", str(samples), len(list(samples.iterdir())))


def _assets() -> Any:
    place = os.environ["LOWBIT_ASSETS"]
    if place not in sys.path:
        sys.path.insert(0, place)
    return importlib.import_module("assets")


def example_model() -> str:
    """Return the path of the bundled model."""
    return str(_EXAMPLE / "model.onnx")


def example(file: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and labels of a bundled set of images."""
    data = np.load(_EXAMPLE / file)
    pixels = (data["images"] / 255 - _MEAN) / _STD
    return pixels.transpose(0, 3, 1, 2).astype(np.float32), data["labels"]


def _calibration(name: str, count: int) -> Iterable[np.ndarray]:
    if name != EXAMPLE:
        return (x for x, _ in _assets().imagenet("calib", name, 1, count))
    images, _ = example("calib.npz")
    # More than there are: the same again, as only time and memory are asked for then.
    return (images[index % len(images)][None] for index in range(count))


def _write_samples(folder: pathlib.Path, make: Any) -> pathlib.Path:
    done = folder.with_suffix(".done")
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for index, row in enumerate(make()):
            np.save(folder / f"{index:05}.npy", row)
        done.touch()
    return folder


def _write_feeds(folder: pathlib.Path, feeds: Iterable[dict[str, np.ndarray]]) -> pathlib.Path:
    """Write samples of several inputs, those of each into a folder of its name."""
    for index, feed in enumerate(feeds):
        for name, array in feed.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            np.save(folder / name / f"{index:05}.npy", array)
    return folder


def _write_images(folder: pathlib.Path, name: str, count: int) -> tuple[pathlib.Path, pathlib.Path]:
    images, labels = folder / "images.npy", folder / "labels.npy"
    if not labels.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if name == EXAMPLE:
            x, y = example("test.npz")
            x, y = x[:count], y[:count]
        else:
            parts = list(_assets().imagenet("val", name, 50, count))
            x, y = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        np.save(images, x)
        np.save(labels, y)
    return images, labels
