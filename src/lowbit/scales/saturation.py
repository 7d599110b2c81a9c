"""Weights with which kernels that add two products in 16 bits do not saturate.

On x86 without VNNI, kernels multiply uint8 by int8 and add the products of inputs 0 and 1, 2 and 3 and so on
in 16 bits. Two weights of one sign saturate there if together they exceed 128. Half the range would be
safe whatever they are; here only pairs that exceed it are made smaller, and a scale is enlarged
as far as that has less error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray

# 255 * 128 is within 16 bits.
_LARGEST_SUM = 128
_CANDIDATES = 9


def limited_pairs(codes: NDArray[np.generic]) -> NDArray[np.generic]:
    """Return rows of codes of which no two neighbours saturate: both give way by the same."""
    count = codes.shape[1]
    pairs = np.pad(codes.astype(np.int16), ((0, 0), (0, count % 2))).reshape(len(codes), -1, 2)
    same = np.sign(pairs[..., 0]) == np.sign(pairs[..., 1])
    excess = np.where(same, np.maximum(np.abs(pairs).sum(axis=2) - _LARGEST_SUM, 0), 0)
    less = np.stack([excess - excess // 2, excess // 2], axis=2)
    limited = pairs - np.sign(pairs) * less
    return np.asarray(limited.reshape(len(codes), -1)[:, :count], codes.dtype)


def saturation_free_scales(rows: FloatArray, scale: FloatArray, largest: int) -> FloatArray:
    """Return the scale of each row with the least error after pairs are limited.

    It lies between the one given and the one with which no pair has to be limited.
    """
    pairs = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).reshape(len(rows), -1, 2)
    sums = [np.maximum(sign * pairs, 0).sum(axis=2).max(axis=1) for sign in (1, -1)]
    widest = np.maximum(scale, np.maximum(*sums) / (_LARGEST_SUM - 1))
    best, least = scale, np.full(len(rows), np.inf)
    for share in np.linspace(0, 1, _CANDIDATES):
        tried = (scale + share * (widest - scale)).astype(np.float32)
        codes = limited_pairs(np.clip(np.rint(rows / tried[:, None]), -largest, largest))
        error = np.square(rows - codes * tried[:, None]).sum(axis=1)
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return np.asarray(best, np.float32)
