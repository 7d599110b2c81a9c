"""The factors of AMD Quark's cross-layer equalization, in float32 and in its order.

After Nagel et al. 2019 (arXiv:1906.04721), equations 9 to 11, with two additions of Quark's: the
bias counts as one more weight, and small weights are left alone. Kernels are arrays
``[group, out, in, rest]``. Nothing here knows about graphs.
"""

from __future__ import annotations

import numpy as np

from lowbit.equalize._math import input_peaks, output_peaks
from lowbit.numerics.formats import Floats

# Weights smaller than this count as this large when a bias is compared with them.
_TINY = np.float32(1e-7)


def pair_factors(
    head: Floats, bias: Floats | None, tail: Floats, *, threshold: float | None
) -> Floats:
    """Return what the head's channels are multiplied by, and the tail's divided by.

    Args:
        head: Kernel of the layer that writes the channels.
        bias: Its bias, if that is to count as a weight.
        tail: Kernel of the layer that reads them.
        threshold: Channels whose two largest weights add up to less keep a factor of one.
    """
    written, read = output_peaks(head), input_peaks(tail)
    if bias is not None:
        written = np.maximum(written, np.abs(bias / np.float32(bias_shrink(head, bias))))
    root = np.sqrt(written * read)
    # Two subnormal peaks have a product of zero.
    factors = np.divide(read, root, out=np.ones_like(read), where=root != 0)
    if threshold is not None:
        factors[written + read < threshold] = 1
    return np.asarray(factors)


def bias_shrink(kernel: Floats, bias: Floats) -> float:
    """Return what a bias is divided by before it counts as one of its channel's weights."""
    rows = np.abs(kernel.reshape(bias.size, -1))
    nonzero = np.where(rows > 0, rows, np.inf).min(axis=1, keepdims=True)
    dead = ~np.isfinite(nonzero)
    rows = np.maximum(np.where(rows == 0, np.where(dead, _TINY, nonzero), rows), _TINY)
    sizes = np.where(dead[:, 0], np.float32(0), np.abs(bias))
    ratios = sizes[:, None] / rows
    median, mean = float(np.median(ratios)), float(ratios.mean())
    if sizes.max() < 10 and sizes.max() / rows.max() < 20:
        return 5 if median > 100 or mean > 1000 else 2
    if median > 30 or mean > 500:
        return 20
    return 10 if median > 15 or mean > 100 else 5


def triple_factors(first: Floats, depthwise: Floats, last: Floats) -> tuple[Floats, Floats]:
    """Return what goes from the first layer to the depthwise one, and from that to the last.

    The first layer is divided by the first factor, the depthwise one multiplied by it and divided
    by the second, and the last one multiplied by that: afterwards all three have equal peaks.
    """
    peaks = output_peaks(first), output_peaks(depthwise), input_peaks(last)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.power(peaks[0] * peaks[1] * peaks[2], np.float32(1 / 3))
        return _usable(peaks[0] / mean), _usable(mean / peaks[2])


def _usable(factors: Floats) -> Floats:
    return np.where(np.isfinite(factors) & (factors != 0), factors, np.float32(1))


def stem_factors(kernel: Floats) -> Floats:
    """Return what raises each output channel's peak to the largest one's, by 16 at most."""
    peaks = output_peaks(kernel)
    alive = peaks >= np.float32(1e-6)
    ratios = np.divide(peaks.max(initial=0), peaks, out=np.ones_like(peaks), where=alive)
    return np.asarray(np.clip(ratios, np.float32(1), np.float32(16)))
