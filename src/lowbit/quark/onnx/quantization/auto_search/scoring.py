"""How far the outputs of a quantized model are from the float one's, by the names Quark has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from lowbit.emit.bodies import with_bodies
from lowbit.evaluate.runner import Run, run_model
from lowbit.graph import io
from lowbit.quark.errors import QuarkDataError

Array = NDArray[Any]
Distance = Callable[[Array, Array], float]
_PEAK = 255.0


def _mean_square(a: Array, b: Array) -> float:
    return float(np.mean(np.square(a - b)))


def _mean_absolute(a: Array, b: Array) -> float:
    return float(np.mean(np.abs(a - b)))


def _cosine(a: Array, b: Array) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def _psnr(a: Array, b: Array, peak: float = _PEAK) -> float:
    noise = _mean_square(a, b)
    return 100.0 if noise < 1e-10 else float(20 * np.log10(peak / np.sqrt(noise)))


def _ssim(a: Array, b: Array) -> float:
    """Return the structural similarity over the whole output, of a range of 255."""
    small, large = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2
    light = (2 * a.mean() * b.mean() + small) / (a.mean() ** 2 + b.mean() ** 2 + small)
    contrast = (2 * a.std() * b.std() + large) / (a.var() + b.var() + large)
    return float(light * contrast)


DISTANCES: Mapping[str, Distance] = MappingProxyType(
    {
        "L2": _mean_square,
        "L1": _mean_absolute,
        "cos": lambda a, b: 0.5 + 0.5 * _cosine(a, b),
        "psnr": _psnr,
        "ssim": _ssim,
    }
)
"""Those of ``AutoSearch``."""

PRO_DISTANCES: Mapping[str, Distance] = MappingProxyType(
    {
        "L2": lambda a, b: float(np.linalg.norm(a - b)),
        "L1": lambda a, b: float(np.abs(a - b).sum()),
        "cos": _cosine,
        "psnr": lambda a, b: _psnr(a, b, max(float(a.max()), 1e-10)),
        "ssim": _ssim,
    }
)
"""Those of ``AutoSearchPro``."""


SIMILARITIES = frozenset({"cos", "psnr", "ssim"})
"""Of these the highest is the best."""


def read_feeds(reader: Any) -> list[dict[str, Any]]:
    """Return all that a reader or a loader gives."""
    rewind = getattr(reader, "reset_iter", None) or getattr(reader, "rewind", None)
    if rewind is not None:
        rewind()
    if hasattr(reader, "get_next"):
        found = []
        while (feed := reader.get_next()) is not None:
            found.append(dict(feed))
    else:
        found = [dict(feed) for feed in reader or ()]
    if not found:
        raise QuarkDataError("the data reader gives nothing to search on")
    return found


def outputs_of(
    model: str | onnx.ModelProto, feeds: Iterable[Mapping[str, Any]], *, quantized: bool
) -> list[Array]:
    """Return all outputs of a model in one row for each feed."""
    loaded = with_bodies(io.load(model)) if quantized else io.load(model)
    run = Run.quantized_model(loaded) if quantized else Run.float_model(loaded)
    return [
        np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in outputs.values()])
        for outputs in run_model(run, feeds)
    ]


def distance(measure: Distance, want: Sequence[Array], got: Sequence[Array]) -> float:
    """Return the mean distance over samples."""
    return float(np.mean([measure(a, b) for a, b in zip(want, got, strict=True)]))
