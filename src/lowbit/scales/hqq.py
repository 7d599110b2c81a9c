"""HQQ: scales and zero points by half-quadratic splitting, from the weights alone.

The error of rounding is taken in a norm below one (p = 0.7), which lets single outliers err so that the many
are near. With e the part of the error that is given up to outliers, found by shrinkage, what fits the rest
best has a closed form (Badri and Shaji, "Half-Quadratic Quantization", 2023). As published that is a zero
point in float; here it is an integer, as in ONNX, and the scale is fitted as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lowbit.config.methods import Hqq
from lowbit.config.specs import IntegerSpec
from lowbit.numerics.affine import QParams, range_qparams
from lowbit.numerics.formats import FloatArray

# How many numbers are worked on at once: more would only take memory, since no row depends on another.
_AT_ONCE = 1 << 20


def hqq_params(rows: FloatArray, spec: IntegerSpec, method: Hqq) -> QParams:
    """Return the parameters of each row, a group or a channel."""
    step = max(1, _AT_ONCE // max(rows.shape[1], 1))
    starts = range(0, max(len(rows), 1), step)
    found = [_params_of(rows[start : start + step], spec, method) for start in starts]
    scale, zero = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    return QParams(scale, zero, spec.format)


def _params_of(
    rows: FloatArray, spec: IntegerSpec, method: Hqq
) -> tuple[FloatArray, NDArray[np.generic]]:
    """Return the scales and zero points of some rows."""
    low, high = rows.min(axis=1, initial=0.0), rows.max(axis=1, initial=0.0)
    start = range_qparams(
        low, high, spec.format, symmetric=spec.symmetric, reduce_range=spec.reduce_range
    )
    scale, zero = start.scale.astype(np.float32), start.zero_point.astype(np.float32)
    best = (scale, zero)
    least = _error(rows, scale, zero, spec, method)
    # Weights are compared in units of their scale, so that beta means the same for all.
    beta = method.beta
    for _ in range(method.iterations):
        codes = _codes(rows, scale, zero, spec)
        given_up = _shrunk(rows / scale[:, None] - (codes - zero[:, None]), beta, method.norm)
        target = rows / scale[:, None] - given_up
        if not spec.symmetric:
            zero = _rounded(np.mean(codes - target, axis=1), spec)
        scale = scale * _fitted_scale(codes - zero[:, None], target)
        error = _error(rows, scale, zero, spec, method)
        better = error < least
        best = (np.where(better, scale, best[0]), np.where(better, zero, best[1]))
        least = np.minimum(error, least)
        beta *= method.growth
    found_scale, found_zero = best
    return np.asarray(found_scale, np.float32), np.asarray(found_zero, spec.format.dtype)


def _codes(rows: FloatArray, scale: FloatArray, zero: FloatArray, spec: IntegerSpec) -> FloatArray:
    low, high = spec.limits
    codes = np.clip(np.rint(rows / scale[:, None] + zero[:, None]), low, high)
    return np.asarray(codes, np.float32)


def _error(
    rows: FloatArray, scale: FloatArray, zero: FloatArray, spec: IntegerSpec, method: Hqq
) -> FloatArray:
    values = (_codes(rows, scale, zero, spec) - zero[:, None]) * scale[:, None]
    return np.asarray((np.abs(rows - values) ** method.norm).sum(axis=1), np.float32)


def _shrunk(error: FloatArray, beta: float, norm: float) -> FloatArray:
    """Return what large errors have beyond a threshold, which is lower for larger ones."""
    size = np.abs(error)
    with np.errstate(divide="ignore"):
        threshold = np.where(size > 0, size ** (norm - 1), np.inf) / beta
    return np.asarray(np.sign(error) * np.maximum(size - threshold, 0), np.float32)


def _fitted_scale(steps: FloatArray, target: FloatArray) -> FloatArray:
    power = np.einsum("ij,ij->i", steps, steps)
    ratio = np.einsum("ij,ij->i", steps, target) / np.maximum(power, 1e-12)
    return np.asarray(np.where(ratio > 0, ratio, 1.0), np.float32)


def _rounded(zero: FloatArray, spec: IntegerSpec) -> FloatArray:
    return np.clip(np.rint(zero), *spec.limits).astype(np.float32)
