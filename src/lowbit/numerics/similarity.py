"""How alike two arrays or pictures are: cosine, L2, PSNR and SSIM, as the literature defines them.

Pure NumPy, in double precision. Nothing here knows about files.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Wang, Bovik, Sheikh and Simoncelli, "Image quality assessment" (2004), section III.C.
_SIGMA, _RADIUS = 1.5, 5
_K1, _K2 = 0.01, 0.03
_WINDOW = 2 * _RADIUS + 1
_MOST_COLOURS = 4

Doubles = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Similarity:
    """The figures of one pair; ``ssim`` is not a number where the arrays are too small for it."""

    cosine: float
    l2: float
    psnr: float
    ssim: float


def similarity(want: NDArray[Any], got: NDArray[Any], peak: float | None = None) -> Similarity:
    """Compare two arrays of one shape.

    ``peak`` is the span of possible values: 255 for pictures of 8 bits. If it is not given it is
    that of ``want``, its largest less its smallest value.
    """
    a, b = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"arrays of shapes {a.shape} and {b.shape} cannot be compared")
    if peak is None:
        peak = float(a.max() - a.min()) if a.size else 0.0
    return Similarity(cosine(a, b), l2(a, b), psnr(a, b, peak), ssim(a, b, peak))


def cosine(a: Doubles, b: Doubles) -> float:
    """Return the cosine of the angle between two arrays; 1 if both are zero."""
    norm = math.sqrt(float(np.sum(a * a)) * float(np.sum(b * b)))
    if norm == 0:
        return 0.0 if a.any() or b.any() else 1.0
    return float(np.sum(a * b)) / norm


def l2(a: Doubles, b: Doubles) -> float:
    """Return the Euclidean distance."""
    return float(np.sqrt(np.sum((a - b) ** 2)))


def psnr(a: Doubles, b: Doubles, peak: float) -> float:
    """Return the peak signal-to-noise ratio in decibels; infinite for equal arrays."""
    error = float(np.mean((a - b) ** 2)) if a.size else 0.0
    if error == 0:
        return math.inf
    return 10 * math.log10(peak * peak / error) if peak > 0 else -math.inf


def ssim(a: Doubles, b: Doubles, peak: float) -> float:
    """Return the mean structural similarity, with a Gaussian window of 11 and sigma 1.5.

    The window slides over the two axes of a picture: the last two, or the two before it where the
    last one holds colours. A single row of numbers has a window of one axis. The mean is
    over all windows that lie inside and all pictures of the array.
    """
    axes = _picture_axes(a.shape)
    if not axes or not np.isfinite(peak):
        return math.nan
    if peak == 0:
        return 1.0 if np.array_equal(a, b) else math.nan
    c1, c2 = (_K1 * peak) ** 2, (_K2 * peak) ** 2
    mean_a, mean_b = _blurred(a, axes), _blurred(b, axes)
    variance_a = _blurred(a * a, axes) - mean_a**2
    variance_b = _blurred(b * b, axes) - mean_b**2
    covariance = _blurred(a * b, axes) - mean_a * mean_b
    alike = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    most = (mean_a**2 + mean_b**2 + c1) * (variance_a + variance_b + c2)
    return float(np.mean(alike / most))


def _picture_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes a window slides over; none where it does not fit."""
    rank = len(shape)
    if rank >= 3 and shape[-1] <= _MOST_COLOURS and min(shape[-3:-1]) >= _WINDOW:
        return (rank - 3, rank - 2)
    if rank >= 2 and min(shape[-2:]) >= _WINDOW:
        return (rank - 2, rank - 1)
    is_row = rank >= 1 and shape[-1] >= _WINDOW and math.prod(shape[:-1]) == 1
    return (rank - 1,) if is_row else ()


def _blurred(x: Doubles, axes: tuple[int, ...]) -> Doubles:
    """Return the Gaussian average around each place whose window lies inside."""
    offsets = np.arange(-_RADIUS, _RADIUS + 1)
    window = np.exp(-0.5 * (offsets / _SIGMA) ** 2)
    window /= window.sum()
    for axis in axes:
        x = np.lib.stride_tricks.sliding_window_view(x, _WINDOW, axis) @ window
    return x
