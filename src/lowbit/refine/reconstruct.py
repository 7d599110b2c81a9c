"""Layer reconstruction: rounding in closed form, from second moments, with the exact bias."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection, Sequence

import numpy as np

from lowbit.config.refinement import LayerReconstruction
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray
from lowbit.refine.algorithm import Algorithm, LoopSettings, Solve
from lowbit.refine.column_sums import ALL
from lowbit.refine.descent import Moments, add_ridge, descend
from lowbit.refine.devices import Device
from lowbit.refine.layers import (
    LayerResult,
    RefinedLayer,
    float_bias,
    float_weights,
    unrefined,
)
from lowbit.refine.moments import LayerMoments
from lowbit.state import Quantized

# Weights that are computed with at a time: a dozen arrays of them are in memory.
_AT_ONCE = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The integers that a layer's weights may become, as groups x outputs x depth.

    All are codes, integers less the zero point: ``low`` and ``high`` the two neighbours of each
    weight, ``lowest`` and ``highest`` what the format holds and kernels that saturate allow.
    """

    weight: FloatArray
    scale: FloatArray
    nearest: FloatArray
    low: FloatArray
    high: FloatArray
    lowest: FloatArray
    highest: FloatArray

    @classmethod
    def of(cls, layer: RefinedLayer, weight: FloatArray, rows: slice = ALL) -> Grid:
        """Return the two neighbours of every weight of some outputs, and the nearer one."""
        scale, zero = layer.weight_params.broadcast(weight.ndim)
        shape = weight.shape
        w, s, z = (_matrix(layer, np.broadcast_to(a, shape), rows) for a in (weight, scale, zero))
        lowest, highest = (limit - z for limit in layer.limits)
        exact = w / s
        if layer.pairs is not None:
            near = np.clip(np.rint(weight / scale), *layer.limits)
            safe = layer.pairs.limits(near, layer.limits[1])
            lowest, highest = (_matrix(layer, a, rows) for a in safe)
        low, high = (np.clip(a, lowest, highest) for a in (np.floor(exact), np.ceil(exact)))
        return cls(w, s, np.clip(np.rint(exact), low, high), low, high, lowest, highest)


def _matrix(layer: RefinedLayer, weight: Array, rows: slice) -> FloatArray:
    """Return some outputs of a layer's weights as groups x outputs x depth."""
    part = layer.geometry.kernel(weight)[:, rows]
    return np.asarray(np.ascontiguousarray(part).reshape(*part.shape[:2], -1), np.float32)


RoundWeights = Callable[[FloatArray, Grid], FloatArray]
"""Rounds some outputs of a layer, given their second moments with its inputs: returns codes."""

Rounding = Callable[[FloatArray], RoundWeights]
"""A way to round weights, given the second moments of a layer's inputs, which it may change."""


def stored_integers(layer: RefinedLayer, codes: FloatArray) -> Array:
    """Return the stored integers for codes."""
    params = layer.weight_params
    integers = np.ascontiguousarray(layer.geometry.weight(codes))
    _, zero = params.broadcast(integers.ndim)
    return np.asarray(integers + zero.astype(np.float32)).astype(params.format.dtype)


def reconstruct(
    state: Quantized,
    config: LayerReconstruction,
    device: Device,
    layer: RefinedLayer,
    seen: LayerMoments,
) -> LayerResult:
    """Return the best rounding of one layer, or the nearest where nothing better was found."""

    def rounding(inputs: FloatArray) -> RoundWeights:
        put, extra = device.put, add_ridge(inputs, config.ridge)
        there = put(inputs)

        def rounded(outputs: FloatArray, grid: Grid) -> FloatArray:
            codes = descend(
                Moments(there, put(outputs + extra[:, None, :] * grid.weight)),
                put(grid.nearest),
                put(grid.scale),
                (put(grid.low), put(grid.high)),
                config.sweeps,
            )
            return np.asarray(device.get(codes), np.float32)

        return rounded

    return better_rounding(state, rounding, layer, seen)


def better_rounding(
    state: Quantized, rounding: Rounding, layer: RefinedLayer, seen: LayerMoments
) -> LayerResult:
    """Return what ``rounding`` makes of one layer, with the bias that suits it, if that is better.

    Nearest integers with a better bias, and what the quantized model has, are the other candidates.
    Where the device computes otherwise what the layer reads, its outputs' attenuation is undone first.
    """
    if seen.is_empty:
        return unrefined(state, layer, 0.0)
    weight, factor = np.asarray(layer.geometry.weight(seen.weight), np.float32), seen.output_gain
    wanted = _restored(layer, weight, factor)
    # Once for all outputs: it is as large as the weights.
    solve = rounding(seen.input_moments()) if seen.is_worth_solving else None
    parts: dict[str, list[_Part]] = {name: [] for name in ("nothing", "bias", "rounding")}
    errors = {name: seen.error_sum() for name in parts}
    for rows in _blocks(layer):
        grid = Grid.of(layer, wanted, rows)
        plain = grid if wanted is weight else Grid.of(layer, weight, rows)
        found = _candidates(solve, plain, grid, seen, rows)
        for name, (codes, offset) in found.items():
            errors[name].add(rows, codes * grid.scale, offset)
            parts[name].append(_Part(_stored(layer, codes, weight.shape, rows), offset))
    # What is restored has its noise multiplied with its signal, which is no loss.
    power = float(np.square(factor).mean())
    means = {
        name: errors[name].mean / (1.0 if name == "nothing" else power)
        for name in parts
        if parts[name]
    }
    best = min(means, key=lambda name: means[name])
    stored = np.concatenate([part.stored for part in parts[best]], axis=1)
    return LayerResult(
        layer.node,
        np.ascontiguousarray(layer.geometry.weight(stored)),
        _joined([part.offset for part in parts[best]], seen.bias),
        means["nothing"],
        means[best],
        kept=best != "nothing",
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """The result for some outputs: integers, groups x outputs x depth, and a bias."""

    stored: Array
    offset: FloatArray | None


def _blocks(layer: RefinedLayer) -> list[slice]:
    """Return the outputs in blocks of as many weights as are computed with at a time."""
    if layer.pairs is not None:  # limits are found from all weights at once
        return [ALL]
    geometry = layer.geometry
    step = max(1, _AT_ONCE // max(1, geometry.groups * geometry.depth))
    return [slice(first, first + step) for first in range(0, geometry.outputs, step)]


def _restored(layer: RefinedLayer, weight: FloatArray, factor: FloatArray) -> FloatArray:
    """Return weights whose outputs are multiplied; the same if no factor is more than one."""
    if not (factor > 1).any():
        return weight
    restored = _matrix(layer, weight, ALL) * factor
    return np.asarray(layer.geometry.weight(restored), np.float32)


def _candidates(
    rounded: RoundWeights | None, plain: Grid, grid: Grid, seen: LayerMoments, rows: slice
) -> dict[str, tuple[FloatArray, FloatArray | None]]:
    """Return what some outputs of a layer may become: codes and biases."""
    bias = None if seen.bias is None else seen.bias.reshape(seen.weight.shape[:2])[:, rows]
    inputs, outputs = seen.means
    means = inputs, outputs[:, rows]
    found = {"nothing": (plain.nearest, bias)}
    if bias is not None or plain is not grid:
        found["bias"] = grid.nearest, exact_bias(grid.nearest * grid.scale, means, bias)
    if rounded is not None:
        codes = rounded(seen.output_moments(rows) * seen.output_gain[:, rows], grid)
        found["rounding"] = codes, exact_bias(codes * grid.scale, means, bias)
    return found


def _stored(layer: RefinedLayer, codes: FloatArray, shape: tuple[int, ...], rows: slice) -> Array:
    """Return the stored integers for codes of some outputs, groups x outputs x depth."""
    params = layer.weight_params
    _, zero = params.broadcast(len(shape))
    zeros = _matrix(layer, np.broadcast_to(zero, shape), rows)
    return np.asarray(codes + zeros).astype(params.format.dtype)


def _joined(offsets: Sequence[FloatArray | None], like: FloatArray | None) -> FloatArray | None:
    found = [offset for offset in offsets if offset is not None]
    if like is None or not found:
        return None
    return np.asarray(np.concatenate(found, axis=1).reshape(like.shape), np.float32)


def layer_moments(
    state: Quantized, layer: RefinedLayer, held_out: Collection[int] = ()
) -> LayerMoments:
    """Return what takes in the samples of one layer; those ``held_out`` decide what is kept."""
    weight = float_weights(state, layer)
    return LayerMoments(
        np.asarray(layer.geometry.matrix(weight), np.float32),
        float_bias(state, layer),
        rounding=_rounding(layer, weight),
        restored=layer.reads_other_curve,
        fixed_bias=layer.fixed_bias,
        clipped=layer.clipped,
        relative=layer.relative,
        held_out=held_out,
    )


def _rounding(layer: RefinedLayer, weight: FloatArray) -> FloatArray:
    """Return what rounding to the nearest changes of the weights."""
    grids = (Grid.of(layer, weight, rows) for rows in _blocks(layer))
    return np.concatenate([g.nearest * g.scale - g.weight for g in grids], axis=1)


def exact_bias(
    weight: FloatArray, means: tuple[Array, Array], bias: FloatArray | None
) -> FloatArray | None:
    """Return the bias under which the mean output is the float one's, over all positions.

    ``means`` are those of patches and targets; ``bias`` gives the shape.
    """
    if bias is None:
        return None
    mean = means[1] - np.matmul(weight, means[0][:, :, None])[:, :, 0]
    return np.asarray(mean.reshape(bias.shape), np.float32)


def _solver(state: Quantized, config: LayerReconstruction, stop: threading.Event) -> Solve:
    del stop  # a layer takes a moment
    return functools.partial(reconstruct, state, config, Device(config.optim_device))


RECONSTRUCTION = Algorithm(
    settings=lambda config: LoopSettings(
        positions=config.positions, moments=True, few_samples=True, held_out=config.held_out
    ),
    solver=_solver,
    collector=layer_moments,
    check=lambda config: Device(config.optim_device),
    needs_data=True,
)
