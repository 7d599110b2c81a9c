"""The threshold whose quantized distribution diverges least from the observed one.

The method is TensorRT's, as onnxruntime and AMD Quark have it: for every symmetric window around
zero, merge its bins into the quantizer's levels, spread them out again over the occupied bins, and
take the window of least Kullback-Leibler divergence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import Floats

_EPSILON = 1e-4


def entropy_window(counts: NDArray[np.int64], levels: int, stride: int = 1) -> tuple[int, int]:
    """Return the first and last edge (as indices) of the best window of a signed histogram.

    ``stride`` tries only every so many windows.
    """
    middle, half = len(counts) // 2, levels // 2
    best, window = np.inf, (0, len(counts))
    for reach in range(half, middle + 1, stride):
        start, end = middle - reach, min(middle + reach + 1, len(counts))
        divergence = _divergence(counts, start, end, levels)
        if divergence < best:
            best, window = divergence, (start, end)
    return window


def _divergence(counts: NDArray[np.int64], start: int, end: int, levels: int) -> float:
    inside = counts[start:end]
    reference = inside.copy()
    reference[0] += counts[:start].sum()
    reference[-1] += counts[end:].sum()
    quantized = _requantized(inside, reference != 0, levels)
    p, q = _smooth(reference), _smooth(quantized)
    if p is None or q is None:
        return np.inf
    # In single precision, as onnxruntime does: the choice between near ties depends on it.
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


def _requantized(
    inside: NDArray[np.int64], occupied: NDArray[np.bool_], levels: int
) -> NDArray[np.int64]:
    """Merge bins into levels, then spread each level evenly over its occupied bins."""
    merged = len(inside) // levels
    body = levels * merged
    sums = inside[:body].reshape(levels, merged).sum(axis=1)
    sums[-1] += inside[body:].sum()
    filled = occupied[:body].reshape(levels, merged).sum(axis=1)
    share = np.divide(sums, filled, out=np.zeros(levels), where=filled != 0).astype(np.int64)
    spread = np.zeros(len(inside), np.int64)
    spread[:body] = np.repeat(share, merged)
    return spread


def _smooth(counts: NDArray[np.int64]) -> Floats | None:
    """Give empty bins a little weight, taken from the others; ``None`` if that is impossible."""
    empty = counts == 0
    occupied = len(counts) - int(empty.sum())
    if occupied == 0:
        return None
    taken = _EPSILON * float(empty.sum()) / occupied
    if taken >= 1.0:
        return None
    smoothed = counts.astype(np.float32)
    smoothed += np.where(empty, np.float32(_EPSILON), np.float32(-taken))
    return smoothed if (smoothed > 0).all() else None
