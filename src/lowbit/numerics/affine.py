"""Affine quantization: ranges to parameters, floats to integers and back.

Pure NumPy. The formulas are those of ONNX's QuantizeLinear and DequantizeLinear; rounding is
half to even.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.numerics.formats import FloatArray, IntArray, IntegerFormat

_TINY = float(np.finfo(np.float32).tiny)
_WIDEST = float(np.finfo(np.float32).max) / 2
# Numbers that are rounded at a time.
_AT_ONCE = 1 << 22
_MOST_FRACTION_BITS, _FEWEST_FRACTION_BITS = 126, -120


@dataclasses.dataclass(frozen=True, slots=True)
class QParams:
    """Scale and zero point of one tensor: scalars, or one entry for each channel of ``axis``.

    With ``group_size``, they have the tensor's shape but along ``axis``, where each entry holds for
    so many of its ``length`` elements.
    """

    scale: FloatArray
    zero_point: IntArray
    format: IntegerFormat
    axis: int | None = None
    group_size: int | None = None
    length: int = 0

    def broadcast(self, rank: int) -> tuple[FloatArray, IntArray]:
        """Return scale and zero point shaped to broadcast against a tensor of ``rank``."""
        if self.axis is None:
            return self.scale, self.zero_point
        if self.group_size is not None:
            at = np.arange(self.length) // self.group_size
            return np.take(self.scale, at, self.axis), np.take(self.zero_point, at, self.axis)
        shape = [1] * rank
        shape[self.axis] = -1
        return self.scale.reshape(shape), self.zero_point.reshape(shape)

    @property
    def fraction_bits(self) -> int:
        """How many: the scale is ``2 ** -fraction_bits``. Only for power-of-two scales."""
        return round(-float(np.log2(np.max(self.scale))))


def range_qparams(
    low: Any, high: Any, fmt: IntegerFormat, *, symmetric: bool, reduce_range: bool = False
) -> QParams:
    """Return the parameters that map ``[low, high]`` onto the integers of ``fmt``.

    The range is first widened to contain zero, so that zero is exactly representable
    (padding and ReLU depend on it). A range of no width gives scale 1 and zero point 0.
    """
    low = np.clip(np.minimum(np.asarray(low, np.float32), 0), -_WIDEST, 0).astype(np.float32)
    high = np.clip(np.maximum(np.asarray(high, np.float32), 0), 0, _WIDEST).astype(np.float32)
    if symmetric:
        high = np.maximum(-low, high)
        low = -high
    qmin, qmax = fmt.limits(symmetric=symmetric, reduce_range=reduce_range)
    scale = (high - low).astype(np.float64) / (qmax - qmin)
    empty = scale < _TINY
    scale = np.where(empty, 1.0, scale)
    if symmetric:
        zero_point = np.full(scale.shape, 0 if fmt.signed else (qmax + qmin + 1) // 2)
    else:
        zero_point = np.clip(np.rint(qmin - low / scale), qmin, qmax)
        zero_point = np.where(empty, 0, zero_point)
    return QParams(np.asarray(scale, np.float32), np.asarray(zero_point, fmt.dtype), fmt)


def power_of_two_qparams(fraction_bits: int, fmt: IntegerFormat) -> QParams:
    """Return symmetric parameters with the scale ``2 ** -fraction_bits``.

    They are kept where the scale is a normal float and its largest code is finite.
    """
    fraction_bits = min(max(fraction_bits, _FEWEST_FRACTION_BITS), _MOST_FRACTION_BITS)
    zero_point = 0 if fmt.signed else (fmt.high + 1) // 2
    return QParams(
        np.asarray(2.0**-fraction_bits, np.float32), np.asarray(zero_point, fmt.dtype), fmt
    )


def quantize(x: NDArray[Any], params: QParams, limits: tuple[int, int] | None = None) -> IntArray:
    """Round ``x`` to the nearest integers of the format, ties to even, saturating."""
    scale, zero_point = params.broadcast(x.ndim)
    low, high = limits or (params.format.low, params.format.high)
    # The limits of 32 bits are not single-precision numbers.
    kind = np.float64 if params.format.bits == 32 else np.float32
    zero_point = zero_point.astype(kind)
    if x.size <= _AT_ONCE or x.ndim == 0:
        return _codes(x, scale, zero_point, (low, high)).astype(params.format.dtype)
    # Some rows at a time: temporary arrays are four times as large as what is returned.
    codes = np.empty(x.shape, params.format.dtype)
    scales, zero_points = (np.broadcast_to(array, x.shape) for array in (scale, zero_point))
    step = max(1, _AT_ONCE * len(x) // x.size)
    for start in range(0, len(x), step):
        part = slice(start, start + step)
        codes[part] = _codes(x[part], scales[part], zero_points[part], (low, high))
    return codes


def _codes(
    x: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any], limits: tuple[int, int]
) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # an infinite quotient saturates like any other
        # NumPy 1 would add a single float64 in float32.
        rounded = np.rint(x / scale).astype(zero_point.dtype, copy=False) + zero_point
    return np.asarray(np.clip(rounded, *limits))


def dequantize(q: IntArray, params: QParams) -> FloatArray:
    """Return the floats that the integers ``q`` stand for."""
    scale, zero_point = params.broadcast(q.ndim)
    if params.format.bits == 32:
        # Single precision cannot hold the zero point of 32 bits.
        return ((q.astype(np.float64) - zero_point) * scale).astype(np.float32)
    values = q.astype(np.float32)
    values -= zero_point.astype(np.float32)
    values *= scale
    return values
