"""Block formats: a shared power-of-two scale for each run of numbers along an axis.

BFP16 and MX4/6/9 are block floating point: integers of a few bits under a shared exponent, the
MX ones with a one-bit exponent of its own for every pair. MXINT8 and MXFP are those of the Open
Compute Project: 8-bit integers, or floats of 8, 6 or 4 bits, under a shared exponent. Everything
here gives the values of the operators that AMD's tools write.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from lowbit.numerics.formats import FloatArray

# Numbers below the normal ones count as having this exponent.
_LOWEST = np.float32(2.0**-127)
_LARGEST = np.finfo(np.float32).max


class Rounding(enum.Enum):
    """How ties, halfway between two codes, are rounded."""

    EVEN = "even"
    AWAY = "away"
    """Away from zero."""
    UP = "up"
    """Towards plus infinity."""


class Element(enum.Enum):
    """The elements of an MX format, named as in the attribute ``element_dtype`` of AMD's operators."""

    INT8 = "int8"
    FP8_E5M2 = "fp8_e5m2"
    FP8_E4M3 = "fp8_e4m3"
    FP6_E3M2 = "fp6_e3m2"
    FP6_E2M3 = "fp6_e2m3"
    FP4_E2M1 = "fp4_e2m1"


@dataclasses.dataclass(frozen=True, slots=True)
class Minifloat:
    """A float of a few bits: ``emin`` and ``emax`` are the exponents of its normal numbers."""

    mantissa: int
    emin: int
    emax: int
    largest: float


MINIFLOATS: Mapping[Element, Minifloat] = MappingProxyType(
    {
        Element.FP8_E5M2: Minifloat(2, -14, 15, 57344.0),
        Element.FP8_E4M3: Minifloat(3, -6, 8, 448.0),
        Element.FP6_E3M2: Minifloat(2, -2, 4, 28.0),
        Element.FP6_E2M3: Minifloat(3, 0, 2, 7.5),
        Element.FP4_E2M1: Minifloat(1, 0, 2, 6.0),
    }
)


def round_bfp(
    x: FloatArray,
    axis: int,
    *,
    bits: int = 16,
    block: int = 8,
    pairs: bool = False,
    rounding: Rounding = Rounding.EVEN,
) -> FloatArray:
    """Return the values ``x`` takes in block floating point of ``bits`` a number.

    Of the bits 8 are the shared exponent's and one is the sign. With ``pairs``, two neighbours that
    are both below the block's highest binade have one bit more of precision.
    """
    mantissa = bits - 9

    def quantize(blocks: FloatArray) -> FloatArray:
        top = _binade(_finite(blocks).max(axis=-1, keepdims=True))
        step = top * np.float32(2.0 ** (1 - mantissa))
        bound = (top - step) + top
        if pairs:
            couples = _finite(blocks).reshape(*blocks.shape[:-1], -1, 2).max(axis=-1)
            low = np.repeat(couples, 2, axis=-1) < top
            step, bound = np.where(low, step / 2, step), np.where(low, bound / 2, bound)
        return np.clip(_round(blocks / step, rounding) * step, -bound, bound)

    return _by_block(x, axis, block, quantize)


def round_mx(
    x: FloatArray,
    axis: int,
    *,
    element: Element,
    block: int = 32,
    rounding: Rounding = Rounding.EVEN,
) -> FloatArray:
    """Return the values ``x`` takes as elements of a format under a shared power of two."""
    if element is Element.INT8:
        return _by_block(x, axis, block, lambda blocks: _mx_integers(blocks, rounding))
    small = MINIFLOATS[element]

    def quantize(blocks: FloatArray) -> FloatArray:
        # In double precision: the scale may be below the smallest single.
        top = _binade(_finite(blocks).max(axis=-1, keepdims=True)).astype(np.float64)
        scale = top * 2.0**-small.emax
        scaled = blocks / scale
        exponent = np.maximum(np.frexp(scaled)[1] - 1, small.emin)
        step = np.exp2(exponent - small.mantissa)
        codes = np.clip(np.rint(scaled / step) * step, -small.largest, small.largest)
        return np.asarray(codes * scale, np.float32)

    return _by_block(x, axis, block, quantize)


def _mx_integers(blocks: FloatArray, rounding: Rounding) -> FloatArray:
    step = _binade(_finite(blocks).max(axis=-1, keepdims=True)) * np.float32(2.0**-6)
    return np.clip(_round(blocks / step, rounding), -128, 127) * step


def _by_block(
    x: FloatArray, axis: int, size: int, quantize: Callable[[FloatArray], FloatArray]
) -> FloatArray:
    """Return ``x`` with each run of ``size`` along ``axis`` quantized; the last may be shorter.

    Scalars stay what they are, as do numbers that are not finite.
    """
    x = np.asarray(x, np.float32)
    if x.ndim == 0:
        return x
    moved = np.moveaxis(x, axis, -1)
    length = moved.shape[-1]
    padded = np.pad(moved, [(0, 0)] * (x.ndim - 1) + [(0, -length % size)])
    with np.errstate(over="ignore", invalid="ignore"):
        blocks = quantize(padded.reshape(*moved.shape[:-1], -1, size))
    result = np.moveaxis(blocks.reshape(padded.shape)[..., :length], -1, axis)
    return np.ascontiguousarray(np.where(np.isfinite(x), result, x))


def _finite(blocks: FloatArray) -> FloatArray:
    """Return magnitudes, with zero for what is not finite: that does not count."""
    magnitude = np.abs(blocks)
    return np.where(magnitude <= _LARGEST, magnitude, np.float32(0))


def _binade(magnitude: FloatArray) -> FloatArray:
    """Return the largest power of two that is not above each magnitude."""
    bits = np.ascontiguousarray(magnitude, np.float32).view(np.uint32) & np.uint32(0x7F800000)
    return np.maximum(bits.view(np.float32), _LOWEST)


def _round(x: FloatArray, rounding: Rounding) -> FloatArray:
    if rounding is Rounding.EVEN:
        return np.rint(x)
    sign = np.sign(x) if rounding is Rounding.AWAY else np.float32(1)
    whole = np.floor(x * sign)
    return np.asarray((whole + (x * sign - whole >= 0.5)) * sign, np.float32)
