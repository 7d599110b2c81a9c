"""The 16-bit float formats: rounding to them, with a scale where their range does not fit."""

from __future__ import annotations

import enum
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray


class FloatFormat(enum.Enum):
    """A 16-bit float format, named as in configuration files."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type that holds it."""
        return np.dtype(ml_dtypes.bfloat16 if self is FloatFormat.BFLOAT16 else np.float16)

    @property
    def largest(self) -> float:
        """The largest finite value."""
        return float(ml_dtypes.finfo(self.dtype).max)

    @property
    def scaled_to(self) -> float:
        """What the largest value of a scaled tensor is mapped to.

        bfloat16 has the same relative precision everywhere, so there is nothing to gain from its
        far range; float16 loses bits below 6e-5, so a tensor is spread over all of it.
        """
        return 2.0 if self is FloatFormat.BFLOAT16 else self.largest


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
