"""Shared by the scripts of all tools: read the request, time the phases, write the answer.

These scripts run in the tools' own environments: standard library, numpy, and the tool itself.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from importlib import metadata


class Watch:
    """Wall and processor seconds of named phases, one after the other."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._since = time.perf_counter(), time.process_time()

    def lap(self, phase: str) -> None:
        """End a phase that began when the last one ended."""
        now = time.perf_counter(), time.process_time()
        self.wall[phase] = self.wall.get(phase, 0.0) + now[0] - self._since[0]
        self.cpu[phase] = self.cpu.get(phase, 0.0) + now[1] - self._since[1]
        self._since = now


def request() -> dict:
    """Return what was asked for: model, input, samples, output, settings."""
    return json.loads(pathlib.Path(sys.argv[1]).read_text())


def answer(watch: Watch, *packages: str, **more) -> None:
    """Write what a run took and which versions did it."""
    versions = {name: metadata.version(name) for name in packages}
    found = {"wall": watch.wall, "cpu": watch.cpu, "versions": versions, **more}
    pathlib.Path(sys.argv[2]).write_text(json.dumps(found))


def feeds(asked: dict):
    """Yield one feed for each sample, read from its file, or from one in the folder of each input."""
    import numpy as np

    columns = _columns(asked)
    for row in zip(*columns.values(), strict=True):
        yield {name: np.load(file) for name, file in zip(columns, row, strict=True)}


def _columns(asked: dict) -> dict:
    samples = pathlib.Path(asked["samples"])
    folders = sorted(path for path in samples.iterdir() if path.is_dir())
    inputs = {folder.name: folder for folder in folders} or {asked["input"]: samples}
    return {name: sorted(folder.glob("*.npy")) for name, folder in inputs.items()}


class Reader:
    """The samples the way onnxruntime's tools and AMD Quark read them."""

    def __init__(self, asked: dict) -> None:
        self._asked = asked
        self.rewind()

    def get_next(self):
        """Return the next feed, or ``None`` behind the last."""
        return next(self._feeds, None)

    def rewind(self) -> None:
        """Start over."""
        self._feeds = feeds(self._asked)

    def __len__(self) -> int:
        return len(next(iter(_columns(self._asked).values())))
