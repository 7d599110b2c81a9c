"""The parameters and integers of biases."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lowbit.config.specs import ProductBias, TensorSpec
from lowbit.numerics.formats import Floats
from lowbit.numerics.qparams import QParams
from lowbit.plan.plan import BiasPlan
from lowbit.resolve.weights import integers, weight_params


def bias_params(bias: Floats, row: BiasPlan, tensors: Mapping[str, QParams]) -> QParams:
    """Return the parameters of a bias: its own, or the accumulator's."""
    if isinstance(row.spec, TensorSpec):
        return weight_params(bias, row.spec, None)
    source, weight = tensors[row.input], tensors[row.weight]
    scale = np.asarray(source.scale * weight.scale * np.float32(row.factor), np.float32)
    axis = None
    if weight.axis is not None:
        scale, axis = np.tile(scale.reshape(-1), row.group), bias.ndim - 1
    zero_point = np.zeros(scale.shape, row.spec.format.dtype)
    return QParams(scale, zero_point, row.spec.format, axis)


def repaired_weight(bias: Floats, row: BiasPlan, tensors: Mapping[str, QParams]) -> QParams | None:
    """Return weight parameters under which the bias fits its format, or ``None`` if it does."""
    if not isinstance(row.spec, ProductBias) or not row.spec.repair:
        return None
    high, weight = row.spec.format.high, tensors[row.weight]
    scale = bias_params(bias, row, tensors).scale.astype(np.float64)
    excess = np.abs(bias.astype(np.float64)) / scale / high
    if weight.axis is None:
        worst = np.asarray(excess.max(initial=0.0))
    else:
        worst = excess.reshape(-1, excess.shape[-1]).max(axis=0)
        worst = worst.reshape(row.group, -1).max(axis=0)
    if not (worst > 1).any():
        return None
    grown = weight.scale.astype(np.float64) * np.maximum(worst * (1 + 1e-6), 1.0)
    return QParams(
        grown.astype(np.float32).reshape(weight.scale.shape),
        weight.zero_point,
        weight.format,
        weight.axis,
    )


def bias_integers(
    bias: Floats, row: BiasPlan, params: QParams, before: QParams | None
) -> NDArray[np.integer]:
    """Return the stored integers of a bias.

    ``before`` are its parameters before an alignment moved the input's scale: with
    ``truncate_realigned`` the integers are carried over from there, rounded towards zero.
    """
    if isinstance(row.spec, TensorSpec):
        return integers(bias, params, row.spec)
    truncates = row.spec.truncate_realigned and before is not None
    start = before if truncates and before is not None else params
    scale, _ = start.broadcast(bias.ndim)
    codes = np.rint(bias.astype(np.float64) / scale)
    low, high = params.format.low, params.format.high
    codes = np.clip(codes, low, high)
    if truncates and before is not None and (before.scale != params.scale).all():
        old, _ = before.broadcast(bias.ndim)
        new, _ = params.broadcast(bias.ndim)
        codes = np.trunc(codes * old / new)
    return np.asarray(np.clip(codes, low, high), params.format.dtype)
