"""Exact equalization on arrays: peaks of kernels, factors of channels, rounds until they settle.

A channel that several layers write and several read may be multiplied by t in all that write and
divided by t in all that read. With r1 and r2 the channel's largest weight on either side, as a
fraction of the layer's largest, t = sqrt(r2 / r1) makes both equal, which is where the product of
both precisions is largest (Nagel et al. 2019, arXiv:1906.04721, equation 11). Fractions, because a
factor on a whole layer changes nothing that one scale for it would not undo, but would push
channels against their bounds.

Kernels are arrays ``[group, out, in, rest]``. Nothing here knows about graphs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray

DoubleArray = NDArray[np.float64]

# A round in which no factor changes by more than this (in octaves) is the last.
_SETTLED = 1e-3


def output_peaks(kernel: FloatArray) -> FloatArray:
    """Return the largest absolute weight of each output channel."""
    return np.asarray(np.abs(kernel).max(axis=(2, 3), initial=0)).reshape(-1)


def input_peaks(kernel: FloatArray) -> FloatArray:
    """Return the largest absolute weight of each input channel."""
    return np.asarray(np.abs(kernel).max(axis=(1, 3), initial=0)).reshape(-1)


def relative(peaks: FloatArray) -> FloatArray:
    """Return peaks as fractions of the largest of them."""
    return np.asarray(peaks / max(peaks.max(initial=0), np.finfo(np.float32).tiny))


def scale_outputs(kernel: FloatArray, factors: FloatArray) -> None:
    """Multiply the weights of each output channel. Changes ``kernel``."""
    kernel *= factors.reshape(kernel.shape[0], kernel.shape[1], 1, 1)


def scale_inputs(kernel: FloatArray, factors: FloatArray) -> None:
    """Multiply the weights of each input channel. Changes ``kernel``."""
    kernel *= factors.reshape(kernel.shape[0], 1, kernel.shape[2], 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Bounds:
    """How far the factor of each channel may go; one where ``frozen``."""

    lowest: DoubleArray
    highest: DoubleArray
    frozen: NDArray[np.bool_]


def make_bounds(
    channels: int,
    limits: Sequence[tuple[float, DoubleArray]],
    *,
    largest: float,
    headroom: float = 1.0,
) -> Bounds:
    """Return the bounds of a group.

    Args:
        channels: How many channels the group has.
        limits: Upper bounds of the group's Clips, each with the largest value seen before it in
            every channel. A channel that stays below is free up to where it would not; one that
            does not must stay as it is.
        largest: The largest factor or divisor.
        headroom: How much more than the largest value seen must stay below.
    """
    highest = np.full(channels, largest)
    frozen = np.zeros(channels, bool)
    for bound, seen in limits:
        reach = np.maximum(seen, 0) * headroom
        # What is not a number is not below the bound either.
        frozen |= ~(reach < bound)
        with np.errstate(divide="ignore", over="ignore"):
            highest = np.fmin(highest, bound / reach)
    return Bounds(np.full(channels, 1 / largest), highest, frozen)


def next_factors(
    written: FloatArray, read: FloatArray, total: DoubleArray, bounds: Bounds
) -> DoubleArray:
    """Return the factors in all, after ``total``, that make both peaks equal within bounds."""
    alive = (written > 0) & (read > 0)
    ratio = np.divide(read, written, out=np.ones(len(total)), where=alive, dtype=np.float64)
    wanted = np.clip(total * np.sqrt(ratio), bounds.lowest, bounds.highest)
    return np.where(bounds.frozen | ~alive, total, wanted)


def is_settled(before: DoubleArray, after: DoubleArray) -> bool:
    """Whether a round changed so little that another is not worth it."""
    return bool(np.abs(np.log2(after / before)).max(initial=0) < _SETTLED)


def is_capped(
    written: FloatArray, read: FloatArray, total: DoubleArray, bounds: Bounds
) -> NDArray[np.bool_]:
    """Return which channels would go further if their bounds let them."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        wish = np.sqrt(np.asarray(read, np.float64) / written)
    at_top = (total >= bounds.highest) & (wish > 1 + _SETTLED)
    at_bottom = (total <= bounds.lowest) & (wish < 1 - _SETTLED)
    return np.asarray((at_top | at_bottom) & np.isfinite(wish) & (wish > 0) & ~bounds.frozen)
