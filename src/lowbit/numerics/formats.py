"""The formats a tensor can be stored in: integers, and small floats with the rounding to them."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
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
    UINT32 = "uint32"

    @functools.cached_property
    def bits(self) -> int:
        """How many bits a value takes."""
        return int(self.value.lstrip("uint"))

    @functools.cached_property
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

    @functools.cached_property
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


class FloatFormat(enum.Enum):
    """A float format of 16 or 8 bits, named as in configuration files."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT8E4M3FN = "float8e4m3fn"
    FLOAT8E5M2 = "float8e5m2"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type that holds it."""
        kind: np.dtype[Any] = np.dtype(_FLOAT_TYPES[self.value])
        return kind

    @property
    def bits(self) -> int:
        """How many bits a value takes."""
        return 8 * self.dtype.itemsize

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float(ml_dtypes.finfo(self.dtype).max)

    @property
    def scaled_to(self) -> float:
        """The value that the largest magnitude of a scaled tensor is mapped to.

        bfloat16 has the same relative precision everywhere, so there is nothing to gain from its
        far range; the others lose bits below (float16 from 6e-5 on), so a tensor is spread over all of it.
        """
        return 2.0 if self is FloatFormat.BFLOAT16 else self.largest


_FLOAT_TYPES: Mapping[str, Any] = MappingProxyType(
    {
        "bfloat16": ml_dtypes.bfloat16,
        "float16": np.float16,
        "float8e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8e5m2": ml_dtypes.float8_e5m2,
    }
)


def scale_to_fit(peak: float, fmt: FloatFormat) -> np.float32:
    """Return the scale that maps ``peak``, the largest magnitude, to where the format is scaled to.

    A tensor of zeros has scale 1.
    """
    scale = np.float32(peak / fmt.scaled_to)
    return scale if scale >= np.finfo(np.float32).tiny else np.float32(1)


def as_stored(x: NDArray[Any], fmt: FloatFormat, scale: Any = 1.0) -> NDArray[Any]:
    """Return ``x / scale`` in the format: nearest, ties to even; finite values stay finite."""
    scaled = np.asarray(x, np.float32)
    if np.any(np.asarray(scale) != 1):
        scaled = np.asarray(scaled / np.asarray(scale, np.float32), np.float32)
    with np.errstate(over="ignore"):
        stored = scaled.astype(fmt.dtype)
    if np.isfinite(stored).all():
        return stored
    finite = np.clip(scaled, -fmt.largest, fmt.largest)
    return np.where(np.isinf(scaled), scaled, finite).astype(fmt.dtype)


def rounded(x: NDArray[Any], fmt: FloatFormat, scale: Any = 1.0) -> FloatArray:
    """Return the float32 values that ``x`` becomes by being stored in the format."""
    return as_stored(x, fmt, scale).astype(np.float32) * np.float32(scale)


def is_float_type(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy type is floating-point, of any width."""
    # ml_dtypes' narrow floats have kind "V", so the kind alone does not show it.
    return "float" in dtype.name
