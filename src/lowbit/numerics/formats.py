"""The integer formats a tensor can be stored in."""

from __future__ import annotations

import enum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.integer]


class IntegerFormat(enum.Enum):
    """An integer storage format, named as in configuration files."""

    INT4 = "int4"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"

    @property
    def bits(self) -> int:
        """How many bits a value takes."""
        return int(self.value.lstrip("uint"))

    @property
    def signed(self) -> bool:
        """Whether negative integers exist."""
        return not self.value.startswith("u")

    @property
    def low(self) -> int:
        """The smallest representable integer."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest representable integer."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    @property
    def dtype(self) -> np.dtype[np.integer]:
        """The NumPy type that holds it (4-bit values are packed only when written)."""
        return np.dtype(f"{'int' if self.signed else 'uint'}{max(self.bits, 8)}")

    def limits(self, *, symmetric: bool, reduce_range: bool = False) -> tuple[int, int]:
        """Return the integers in use.

        Symmetric signed formats leave out the lowest integer, so that the range is the same on
        both sides of zero. ``reduce_range`` gives up one bit, for kernels that saturate.
        """
        low, high = self.low, self.high
        if reduce_range:
            low, high = (low // 2, high // 2)
        if symmetric and self.signed:
            low = -high
        return low, high
