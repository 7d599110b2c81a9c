"""The factors of AMD Quark's cross-layer equalization, on kernels ``[group, out, in, taps]``.

After Nagel et al. 2019 (arXiv:1906.04721), equations 9 to 11, with two additions of Quark's: the
bias counts as one more weight, and small weights are left as they are.
"""

from __future__ import annotations

import numpy as np

from lowbit.numerics.formats import FloatArray
from lowbit.numerics.powers import float32_power
from lowbit.transforms.layers import input_ranges, output_ranges

# Weights smaller than this count as this large when a bias is compared with them.
_TINY = np.float32(1e-7)


def pair_factors(
    head: FloatArray, bias: FloatArray | None, tail: FloatArray, *, threshold: float | None
) -> FloatArray:
    """Return what the head's channels are multiplied by, and the tail's divided by.

    Args:
        head: Kernel of the layer that produces the channels.
        bias: Its bias, if that is to count as a weight.
        tail: Kernel of the layer that consumes them.
        threshold: Channels whose two largest weights add up to less keep a factor of one.
    """
    produced, read = output_ranges(head), input_ranges(tail)
    if bias is not None:
        produced = np.maximum(produced, np.abs(bias / np.float32(bias_shrink(head, bias))))
    root = np.sqrt(produced * read)
    # Two subnormal ranges have a product of zero.
    factors = np.divide(read, root, out=np.ones_like(read), where=root != 0)
    if threshold is not None:
        factors[produced + read < threshold] = 1
    return np.asarray(factors)


def bias_shrink(kernel: FloatArray, bias: FloatArray) -> float:
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


def triple_factors(
    first: FloatArray, depthwise: FloatArray, last: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return what goes from the first layer to the depthwise one, and from that to the last.

    The first layer is divided by the first factor, the depthwise one multiplied by it and divided
    by the second, and the last one multiplied by that: afterwards all three have equal ranges.
    """
    ranges = output_ranges(first), output_ranges(depthwise), input_ranges(last)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = float32_power(ranges[0] * ranges[1] * ranges[2], 1 / 3)
        return _usable(ranges[0] / mean), _usable(mean / ranges[2])


def _usable(factors: FloatArray) -> FloatArray:
    return np.where(np.isfinite(factors) & (factors != 0), factors, np.float32(1))


def stem_factors(kernel: FloatArray) -> FloatArray:
    """Return what raises each output channel's peak to the largest one's, by 16 at most."""
    ranges = output_ranges(kernel)
    alive = ranges >= np.float32(1e-6)
    ratios = np.divide(ranges.max(initial=0), ranges, out=np.ones_like(ranges), where=alive)
    return np.asarray(np.clip(ratios, np.float32(1), np.float32(16)))
