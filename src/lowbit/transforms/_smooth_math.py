"""SmoothQuant on arrays: factors of channels, and how much noise a layer's output has with them.

A layer computes W x. With x / s for x and W s for W the same, and the noise of rounding both to
one step each is, per output and with steps dx and dw,

    dx^2 / 12 * sum_j s_j^2 |W_j|^2  +  dw^2 / 12 * sum_j E[x_j^2] / s_j^2

Steps follow from the largest number of each tensor, so peaks and second moments of the channels
say which factors are best without another pass. What takes the factors is rounded as well: a
normalization's scale g becomes g / s, and its step moves with its largest element.
Nothing here knows about graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from lowbit.transforms._cross_layer_math import DoubleArray

ALPHAS = tuple(round(0.1 * k, 1) for k in range(11))

# Beyond this, a channel that the data hardly shows would decide how others are rounded.
_LARGEST = 1024.0


@dataclasses.dataclass(frozen=True, slots=True)
class Levels:
    """How finely activations and weights are rounded, as their largest integers; 0: not at all."""

    activation: int = 127
    weight: int = 127
    per_channel: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Read:
    """A layer's weights ``[out, in]``, with peaks and second moments of the channels it reads."""

    weight: DoubleArray
    peaks: DoubleArray
    powers: DoubleArray


@dataclasses.dataclass(frozen=True, slots=True)
class Written:
    """Numbers that take the factor: their peak and mean square for each channel."""

    peaks: DoubleArray
    powers: DoubleArray


def smooth_factors(x: DoubleArray, w: DoubleArray, alpha: float) -> DoubleArray:
    """Return s for peaks of activations and weights; their geometric mean is one.

    A channel that is always zero on one side can be had at any factor: at one with which it does
    not stand out on the other.
    """
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    alive = (x > 0) & (w > 0) & np.isfinite(x) & np.isfinite(w)
    s = np.ones(len(x))
    if not alive.any():
        return s
    s[alive] = x[alive] ** alpha / w[alive] ** (1 - alpha)
    s[alive] /= np.exp(np.log(s[alive]).mean())
    highest_x, highest_w = (x[alive] / s[alive]).max(), (w[alive] * s[alive]).max()
    only_x, only_w = ~alive & (w <= 0) & (x > 0), ~alive & (x <= 0) & (w > 0)
    s[only_x] = np.maximum(x[only_x] / highest_x, 1)
    s[only_w] = np.minimum(highest_w / w[only_w], 1)
    return np.clip(np.nan_to_num(s, nan=1.0), 1 / _LARGEST, _LARGEST)


def output_noise(
    reads: Sequence[Read], written: Written | None, s: DoubleArray, levels: Levels
) -> float:
    """Return the noise of the layers' outputs over their signal, added up over the layers."""
    return sum(_noise_of(read, written, s, levels) for read in reads)


def _noise_of(read: Read, written: Written | None, s: DoubleArray, levels: Levels) -> float:
    energy = np.square(read.weight).sum(axis=0)
    signal = float((read.powers * energy).sum())
    if signal <= 0:
        return 0.0
    passed = float((np.square(s) * energy).sum())
    noise = _variance(read.peaks / s, levels.activation) * passed
    scaled = np.square(read.weight * s)
    peaks = scaled.max(axis=1, keepdims=True) if levels.per_channel else scaled.max()
    variance = peaks / levels.weight**2 / 12 if levels.weight else np.zeros(1)
    # A weight below half a step becomes zero, and errs by itself.
    errors = np.minimum(variance, scaled).sum(axis=0)
    noise += float((errors * read.powers / np.square(s)).sum())
    if written is not None and written.powers.sum() > 0:
        into = float(read.powers.sum() / written.powers.sum())
        noise += _variance(written.peaks / s, levels.weight) * into * passed
    return noise / signal


def best_alpha(
    reads: Sequence[Read],
    written: Written | None,
    peaks: tuple[DoubleArray, DoubleArray],
    levels: Levels,
) -> float | None:
    """Return the alpha with the least noise; ``None`` if there is less without any factor."""
    best, least = None, output_noise(reads, written, np.ones(len(peaks[0])), levels)
    for alpha in ALPHAS:
        noise = output_noise(reads, written, smooth_factors(*peaks, alpha), levels)
        if noise < least:
            best, least = alpha, noise
    return best


def _variance(numbers: DoubleArray, levels: int) -> float:
    """Return the mean square of what rounding to one step for all of them changes."""
    return (float(np.max(numbers, initial=0)) / levels) ** 2 / 12 if levels else 0.0
