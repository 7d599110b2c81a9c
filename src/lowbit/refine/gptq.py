"""GPTQ: round the weights of one input after another, the rest making up for the error so far.

With H the second moments of the inputs, rounding the weights of input j by d costs least if the
weights of all later inputs k change by -d U[j, k] / U[j, j], where the inverse of H is U' U and U is
upper triangular (arXiv:2210.17323). All outputs of a layer are rounded at once.
"""

from __future__ import annotations

import functools
import threading

import numpy as np
from numpy.typing import NDArray

from lowbit.config.refinement import Gptq
from lowbit.errors import CalibrationError
from lowbit.numerics.formats import DoubleArray, FloatArray
from lowbit.refine.algorithm import Algorithm, LoopSettings, Solve
from lowbit.refine.layers import LayerResult, RefinedLayer
from lowbit.refine.moments import LayerMoments
from lowbit.refine.reconstruct import Grid, RoundWeights, better_rounding, layer_moments
from lowbit.state import Quantized


def gptq(state: Quantized, config: Gptq, layer: RefinedLayer, seen: LayerMoments) -> LayerResult:
    """Return GPTQ's rounding of one layer, or the nearest where it is no better."""

    def rounding(inputs: FloatArray) -> RoundWeights:
        factored = factor_moments(inputs.astype(np.float64), config)
        return lambda _, grid: round_sequentially(factored, grid, config)

    return better_rounding(state, rounding, layer, seen)


Factored = tuple[DoubleArray, NDArray[np.intp]]
"""The factor of the inverse moments, and the order of inputs."""


def round_sequentially(factored: Factored, grid: Grid, config: Gptq) -> FloatArray:
    """Return codes for the weights of a grid, groups x outputs x depth."""
    factor, order = factored
    # Inputs become rows, in the order they are rounded in.
    weight, scale, lowest, highest = (
        np.take_along_axis(
            np.broadcast_to(a, grid.weight.shape).swapaxes(1, 2), order[:, :, None], axis=1
        ).astype(np.float64)
        for a in (grid.weight, grid.scale, grid.lowest, grid.highest)
    )
    codes = np.empty_like(weight)
    depth = weight.shape[1]
    for first in range(0, depth, config.block_size):
        last = min(first + config.block_size, depth)
        errors = np.empty_like(weight[:, first:last])
        for j in range(first, last):
            s = scale[:, j]
            codes[:, j] = np.clip(np.rint(weight[:, j] / s), lowest[:, j], highest[:, j])
            error = (weight[:, j] - codes[:, j] * s) / factor[:, j, j, None]
            later = factor[:, j, j + 1 : last, None]
            weight[:, j + 1 : last] -= later * error[:, None, :]
            errors[:, j - first] = error
        weight[:, last:] -= factor[:, first:last, last:].swapaxes(1, 2) @ errors
    back = np.argsort(order, axis=1)[:, :, None]
    found = np.take_along_axis(codes, back, axis=1).swapaxes(1, 2)
    return np.ascontiguousarray(found, np.float32)


def factor_moments(moments: DoubleArray, config: Gptq) -> Factored:
    """Return U and the order of inputs, moments that are zero or dependent made regular."""
    groups, depth, _ = moments.shape
    each = np.arange(depth)
    power = moments[:, each, each]
    order = np.broadcast_to(each, (groups, depth))
    if config.act_order:
        order = np.argsort(-power, axis=1, kind="stable")
    damped = np.take_along_axis(moments, order[:, :, None], axis=1)
    damped = np.take_along_axis(damped, order[:, None, :], axis=2)
    sorted_power = np.take_along_axis(power, order, axis=1)
    # An input that is always zero is independent of all others: its weights go to the nearest.
    data = sorted_power > 0
    mean = sorted_power.sum(axis=1, keepdims=True) / np.maximum(data.sum(axis=1, keepdims=True), 1)
    mean = np.where(mean > 0, mean, 1.0)
    damped[:, each, each] = np.where(data, sorted_power, mean) + config.perc_damp * mean
    return _inverse_factor(damped, mean), order


def _inverse_factor(moments: DoubleArray, mean: DoubleArray) -> DoubleArray:
    """Return the upper triangular U with the inverse of the moments as U' U."""
    each = np.arange(moments.shape[1])
    if not np.isfinite(moments).all():
        raise CalibrationError("GPTQ: the inputs of a layer are not finite on some sample")
    # Moments are sums of single-precision products: what those leave uncertain is damped away.
    for damp in (0.0, 1e-6, 1e-5, 1e-4):
        moments[:, each, each] += damp * mean
        try:
            # H = R R' with R upper triangular, from the factor of H with rows and columns reversed; U is its inverse.
            reversed_factor = np.linalg.cholesky(moments[:, ::-1, ::-1])
        except np.linalg.LinAlgError:
            continue
        return np.triu(np.linalg.inv(reversed_factor[:, ::-1, ::-1]))
    raise CalibrationError("GPTQ: the second moments of a layer's inputs cannot be inverted")


def _solver(state: Quantized, config: Gptq, stop: threading.Event) -> Solve:
    del stop  # a layer takes a moment
    return functools.partial(gptq, state, config)


GPTQ = Algorithm(
    settings=lambda config: LoopSettings(
        positions=config.positions,
        moments=True,
        held_out=config.held_out,
        independent=config.parallel,
    ),
    solver=_solver,
    collector=layer_moments,
    needs_data=True,
)
