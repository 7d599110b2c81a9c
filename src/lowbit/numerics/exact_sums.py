"""Sums of float32 numbers that do not round, so that no order or grouping changes them.

A float32 is an integer of 24 bits times a power of two between 2**-149 and 2**104. A sum is kept as
one wide integer for each number, in limbs of 32 bits that are 64 wide: they take two thousand
million additions before one could overflow. Adding two sums is adding their limbs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import DoubleArray

ExactSums = NDArray[np.int64]
"""Limbs of one sum for each row, the lowest first."""

_LIMBS, _WIDTH, _LOWEST = 9, 32, -149
_MASK = np.int64((1 << _WIDTH) - 1)


def exact_sums(values: NDArray[np.floating]) -> ExactSums:
    """Return each of some finite numbers, rounded to float32, as a sum of one."""
    sums = np.zeros((values.size, _LIMBS), np.int64)
    add_exactly(sums, values)
    return sums


def add_exactly(sums: ExactSums, values: NDArray[np.floating]) -> None:
    """Add a finite number, rounded to float32, to each sum, which is changed."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    bits = flat.view(np.uint32).astype(np.int64)
    exponent = (bits >> 23) & 0xFF
    mantissa = (bits & 0x7FFFFF) | np.where(exponent > 0, 1 << 23, 0)
    shift = np.maximum(exponent, 1) - 1
    limb = shift >> 5
    wide = mantissa << (shift & (_WIDTH - 1))
    sign = np.where(bits >> 31, -1, 1)
    rows = np.arange(flat.size)
    sums[rows, limb] += sign * (wide & _MASK)
    sums[rows, limb + 1] += sign * (wide >> _WIDTH)


def are_sums(array: NDArray[np.generic]) -> bool:
    """Whether an array can be sums."""
    return array.dtype == np.int64 and array.ndim == 2 and array.shape[1] == _LIMBS


def as_floats(sums: ExactSums) -> DoubleArray:
    """Return the sums as float64; equal sums give equal floats, however they were added up."""
    limbs = sums.copy()
    for index in range(_LIMBS - 1):
        limbs[:, index + 1] += limbs[:, index] >> _WIDTH
        limbs[:, index] &= _MASK
    total = np.zeros(len(limbs))
    for index in reversed(range(_LIMBS)):
        total += np.ldexp(limbs[:, index].astype(np.float64), _WIDTH * index + _LOWEST)
    return total
