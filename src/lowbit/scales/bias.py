"""The parameters and integers of biases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.numerics.affine import QParams
from lowbit.numerics.formats import FloatArray
from lowbit.planning.plan import BiasPlan
from lowbit.scales.weights import integers, weight_params

_TINY = np.float32(np.finfo(np.float32).tiny)


def bias_params(bias: FloatArray, row: BiasPlan, tensors: Mapping[str, QParams]) -> QParams:
    """Return the parameters of a bias: its own, or the accumulator's."""
    if isinstance(row.spec, IntegerSpec):
        return weight_params(bias, row.spec, None)
    source, weight = tensors[row.input], tensors[row.weight]
    scale = np.maximum(source.scale * weight.scale, _TINY, dtype=np.float32)
    axis = None
    if weight.axis is not None:
        scale, axis = np.tile(scale.reshape(-1), row.repeats), bias.ndim - 1
    zero_point = np.zeros(scale.shape, row.spec.format.dtype)
    return QParams(scale, zero_point, row.spec.format, axis)


def repaired_weight(
    bias: FloatArray, row: BiasPlan, tensors: Mapping[str, QParams], *, power_of_two: bool = False
) -> QParams | None:
    """Return weight parameters under which the bias fits its format, or ``None`` if it does.

    ``power_of_two`` says whether the weight's scale must remain a power of two.
    """
    if not isinstance(row.spec, AccumulatorBias) or not row.spec.repair:
        return None
    high, weight = row.spec.format.high, tensors[row.weight]
    # In double precision: the product may be too small for the single one that is stored.
    scale = tensors[row.input].scale.astype(np.float64) * weight.scale
    if weight.axis is not None:
        scale = np.tile(scale.reshape(-1), row.repeats)
    excess = np.abs(bias.astype(np.float64)) / scale / high
    if weight.axis is None:
        worst = np.asarray(excess.max(initial=0.0))
    else:
        worst = excess.reshape(-1, excess.shape[-1]).max(axis=0)
        worst = worst.reshape(row.repeats, -1).max(axis=0)
    if not (worst > 1).any():
        return None
    factor = np.maximum(worst * (1 + 1e-6), 1.0)
    if power_of_two:
        factor = np.exp2(np.ceil(np.log2(factor)))
    grown = weight.scale.astype(np.float64) * factor
    return QParams(
        grown.astype(np.float32).reshape(weight.scale.shape),
        weight.zero_point,
        weight.format,
        weight.axis,
    )


def bias_integers(
    bias: FloatArray, row: BiasPlan, params: QParams, before: QParams | None
) -> NDArray[np.integer]:
    """Return the stored integers of a bias.

    ``before`` are its parameters before an alignment moved the input's scale: with
    ``truncate_realigned`` the integers are carried over from there, rounded towards zero.
    """
    if isinstance(row.spec, IntegerSpec):
        return integers(bias, params, row.spec)
    start = before if row.spec.truncate_realigned and before is not None else params
    old, new = start.broadcast(bias.ndim)[0], params.broadcast(bias.ndim)[0]
    low, high = params.format.low, params.format.high
    codes = np.clip(np.rint(bias.astype(np.float64) / old), low, high)
    if (start.scale != params.scale).all():
        codes = np.trunc(codes * old / new)
    return np.asarray(np.clip(codes, low, high), params.format.dtype)
