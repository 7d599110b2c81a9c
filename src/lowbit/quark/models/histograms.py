"""Histograms of constants and of what a model computes, as tables."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.api import model_inputs
from lowbit.data import open_data
from lowbit.graph.editing import constant
from lowbit.graph.session import session

_BINS = 256


def weight_histograms(model: ir.Model, folder: Path, *, per_channel: bool) -> int:
    """Write a table of bins and counts for each weight; return how many."""
    written = 0
    for name, value in model.graph.initializers.items():
        array = constant(value)
        if array is None or array.dtype.kind != "f" or array.ndim < 2:
            continue
        rows: Mapping[str, Any] = {"": array}
        if per_channel:
            rows = {f"_channel{i}": row for i, row in enumerate(array)}
        for suffix, row in rows.items():
            counts, edges = np.histogram(row, bins=_BINS)
            _write(folder / f"{_file_name(name)}{suffix}.csv", counts, edges)
            written += 1
    return written


def tensor_histograms(model: ir.Model, data: str, folder: Path) -> int:
    """Run a model and write a table of bins and counts for each tensor; return how many."""
    names = [str(v.name) for node in model.graph for v in node.outputs if v.name]
    feeds = open_data(data, model_inputs(model))
    with session(model, names, name="the model") as running:
        spans: dict[str, tuple[float, float]] = {}
        for feed in feeds:
            for name, array in zip(names, running.run(names, feed), strict=True):
                if np.size(array):
                    low, high = spans.get(name, (np.inf, -np.inf))
                    spans[name] = min(low, float(np.min(array))), max(high, float(np.max(array)))
        counts = {name: np.zeros(_BINS, np.int64) for name in spans}
        for feed in feeds:
            for name, array in zip(names, running.run(names, feed), strict=True):
                if name in counts:
                    counts[name] += np.histogram(array, bins=_BINS, range=_wide(spans[name]))[0]
    for name, row in counts.items():
        _write(folder / f"{_file_name(name)}.csv", row, np.linspace(*_wide(spans[name]), _BINS + 1))
    return len(counts)


def _wide(span: tuple[float, float]) -> tuple[float, float]:
    return span if span[0] < span[1] else (span[0] - 0.5, span[1] + 0.5)


def _write(path: Path, counts: NDArray[Any], edges: NDArray[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("from", "to", "count"))
        table.writerows(zip(edges[:-1], edges[1:], counts, strict=True))


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name)
