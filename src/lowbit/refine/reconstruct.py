"""Layer reconstruction: rounding in closed form, from second moments, with the exact bias."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Collection

import numpy as np

from lowbit.config.refinement import LayerReconstruction
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray
from lowbit.refine.algorithm import Algorithm, LoopSettings, Solve
from lowbit.refine.descent import Moments, descend
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
    def of(cls, layer: RefinedLayer, weight: FloatArray) -> Grid:
        """Return the two neighbours of every weight, and the nearer one."""
        scale, zero = layer.weight_params.broadcast(weight.ndim)
        shape = weight.shape
        w, s, z = (
            np.asarray(layer.geometry.matrix(np.broadcast_to(a, shape)), np.float32)
            for a in (weight, scale, zero)
        )
        lowest, highest = (limit - z for limit in layer.limits)
        exact = w / s
        if layer.pairs is not None:
            near = np.clip(np.rint(weight / scale), *layer.limits)
            safe = layer.pairs.limits(near, layer.limits[1])
            lowest, highest = (np.asarray(layer.geometry.matrix(a), np.float32) for a in safe)
        low, high = (np.clip(a, lowest, highest) for a in (np.floor(exact), np.ceil(exact)))
        return cls(w, s, np.clip(np.rint(exact), low, high), low, high, lowest, highest)


RoundWeights = Callable[[Moments, Grid], FloatArray]
"""A way to round weights, given the moments of what samples show: returns codes."""


def stored_integers(layer: RefinedLayer, codes: FloatArray) -> Array:
    """Return the stored integers for codes."""
    params = layer.weight_params
    integers = layer.geometry.weight(codes)
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

    def rounded(moments: Moments, grid: Grid) -> FloatArray:
        put = device.put
        moments = moments.held_to(grid.weight, config.ridge)
        codes = descend(
            Moments(put(moments.inputs), put(moments.outputs)),
            put(grid.nearest),
            put(grid.scale),
            (put(grid.low), put(grid.high)),
            config.sweeps,
        )
        return np.asarray(device.get(codes), np.float32)

    return better_rounding(state, rounded, layer, seen)


def better_rounding(
    state: Quantized, rounded: RoundWeights, layer: RefinedLayer, seen: LayerMoments
) -> LayerResult:
    """Return what ``rounded`` makes of one layer, with the bias that suits it, if that is better.

    Nearest integers with a better bias, and what the quantized model has, are the other candidates.
    Where the device computes otherwise what the layer reads, its outputs' attenuation is undone first.
    """
    if seen.is_empty:
        return unrefined(state, layer, 0.0)
    plain = Grid.of(layer, float_weights(state, layer))
    bias, factor = seen.bias, seen.restoring
    grid = plain
    if (factor > 1).any():
        restored = layer.geometry.weight(plain.weight * factor)
        grid = Grid.of(layer, np.asarray(restored, np.float32))
    candidates = {
        "nothing": (plain.nearest, bias),
        "bias": (grid.nearest, exact_bias(grid.nearest * grid.scale, seen.means, bias)),
    }
    if seen.is_worth_solving:
        moments = Moments(seen.moments.inputs, seen.moments.outputs * factor)
        found = rounded(moments, grid)
        candidates["rounding"] = found, exact_bias(found * grid.scale, seen.means, bias)
    errors = {
        name: seen.error(codes * grid.scale, offset) for name, (codes, offset) in candidates.items()
    }
    # What is restored has its noise multiplied with its signal, which is no loss.
    louder = float(np.square(factor).mean())
    errors = {name: e if name == "nothing" else e / louder for name, e in errors.items()}
    best = min(errors, key=lambda name: errors[name])
    codes, offset = candidates[best]
    return LayerResult(
        layer.node,
        stored_integers(layer, codes),
        offset,
        errors["nothing"],
        errors[best],
        kept=best != "nothing",
    )


def layer_moments(
    state: Quantized, layer: RefinedLayer, held_out: Collection[int] = ()
) -> LayerMoments:
    """Return what takes in the samples of one layer; those ``held_out`` decide what is kept."""
    grid = Grid.of(layer, float_weights(state, layer))
    return LayerMoments(
        grid.weight,
        float_bias(state, layer),
        rounding=grid.nearest * grid.scale - grid.weight,
        restored=layer.reads_other_curve,
        fixed_bias=layer.fixed_bias,
        relative=layer.relative,
        held_out=held_out,
    )


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
