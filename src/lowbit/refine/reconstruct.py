"""Layer reconstruction: rounding in closed form, from second moments, with the exact bias."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lowbit.config.refinement import LayerReconstruction
from lowbit.graph.session import Array
from lowbit.numerics.formats import FloatArray
from lowbit.refine.algorithm import Algorithm, LoopSettings, Solve
from lowbit.refine.descent import descend, moments_of
from lowbit.refine.devices import Device
from lowbit.refine.layers import LayerResult, RefinedLayer, float_bias, float_weights
from lowbit.refine.samples import LayerSample, held_out_split, means_of
from lowbit.state import Quantized


@dataclasses.dataclass(frozen=True, slots=True)
class LayerData:
    """All samples' patches and targets of a layer, and the means over all positions."""

    patches: FloatArray
    targets: FloatArray
    patch_mean: FloatArray
    target_mean: FloatArray
    importance: FloatArray | None = None
    """What the error at each position is multiplied by; ``None``: all count alike."""

    @classmethod
    def of(
        cls,
        samples: Sequence[LayerSample],
        bias: FloatArray | None = None,
        *,
        relative: bool = False,
    ) -> LayerData:
        """Put the samples together, a bias that stays taken off the targets."""
        patch_mean, target_mean = means_of(samples)
        offset = np.zeros_like(target_mean) if bias is None else bias.reshape(target_mean.shape)
        targets = np.concatenate([s.targets for s in samples], axis=2)
        return cls(
            np.concatenate([s.patches for s in samples], axis=2),
            targets - offset[:, :, None],
            patch_mean,
            target_mean - offset,
            _inverse_sizes(targets) if relative else None,
        )

    def weighted(self, *, centred: bool) -> tuple[FloatArray, FloatArray]:
        """Return patches and targets, about their means if asked for, as far as positions count."""
        patches, targets = self.patches, self.targets
        if self.importance is None:
            return patches, targets
        if centred:
            patches = patches - patches.mean(axis=2, keepdims=True)
            targets = targets - targets.mean(axis=2, keepdims=True)
        return patches * self.importance, targets * self.importance

    def part(self, columns: slice) -> LayerData:
        """Return some of the columns, with the means of all."""
        return dataclasses.replace(
            self,
            patches=self.patches[:, :, columns],
            targets=self.targets[:, :, columns],
            importance=None if self.importance is None else self.importance[columns],
        )


def _inverse_sizes(targets: FloatArray) -> FloatArray:
    """Return one over the size of the output at each position; one on average."""
    sizes = np.sqrt(np.square(targets, dtype=np.float64).mean(axis=(0, 1)))
    inverse = 1 / np.maximum(sizes, 1e-3 * sizes.mean() + 1e-30)
    return np.asarray(inverse / inverse.mean(), np.float32)


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


class RoundWeights(Protocol):
    """A way to round weights, given what samples show."""

    def __call__(self, data: LayerData, grid: Grid, *, centred: bool) -> FloatArray:
        """Return codes; ``centred``: a bias takes off any mean error."""


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
    samples: Sequence[LayerSample],
) -> LayerResult:
    """Return the best rounding of one layer, or the nearest where nothing better was found."""

    def rounded(data: LayerData, grid: Grid, *, centred: bool) -> FloatArray:
        put = device.put
        patches, targets = data.weighted(centred=centred)
        centred = centred and data.importance is None
        moments = moments_of(put(patches), put(targets), centred=centred)
        codes = descend(
            moments.held_to(put(grid.weight), config.ridge),
            put(grid.nearest),
            put(grid.scale),
            (put(grid.low), put(grid.high)),
            config.sweeps,
        )
        return np.asarray(device.get(codes), np.float32)

    return better_rounding(state, config.held_out, rounded, layer, samples)


def better_rounding(
    state: Quantized,
    held_out: float,
    rounded: RoundWeights,
    layer: RefinedLayer,
    samples: Sequence[LayerSample],
) -> LayerResult:
    """Return what ``rounded`` makes of one layer, with the bias that suits it, if that is better.

    A share of the samples is ``held_out`` to decide; nearest integers with a better bias, and
    what the quantized model has, are the other candidates.
    """
    train, held = held_out_split(samples, held_out)
    everything = LayerData.of([*train, *held], layer.fixed_bias, relative=layer.relative)
    columns = sum(s.patches.shape[2] for s in train)
    data = everything.part(slice(columns))
    check = everything.part(slice(columns, None)) if held else data
    grid = Grid.of(layer, float_weights(state, layer))
    bias = float_bias(state, layer)
    found = rounded(data, grid, centred=bias is not None)
    means = everything.patch_mean, everything.target_mean
    candidates = {
        "rounding": (found, exact_bias(found * grid.scale, means, bias)),
        "bias": (grid.nearest, exact_bias(grid.nearest * grid.scale, means, bias)),
        "nothing": (grid.nearest, bias),
    }
    errors = {
        name: error_of(codes * grid.scale, offset, check)
        for name, (codes, offset) in candidates.items()
    }
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


def exact_bias(
    weight: FloatArray, means: tuple[FloatArray, FloatArray], bias: FloatArray | None
) -> FloatArray | None:
    """Return the bias under which the mean output is the float one's, over all positions.

    ``means`` are those of patches and targets; ``bias`` gives the shape.
    """
    if bias is None:
        return None
    mean = means[1] - np.matmul(weight, means[0][:, :, None])[:, :, 0]
    return np.asarray(mean.reshape(bias.shape), np.float32)


def error_of(weight: FloatArray, bias: FloatArray | None, data: LayerData) -> float:
    """Return the mean squared error of a layer's output before its activation."""
    offset = 0.0 if bias is None else bias.reshape(*weight.shape[:2], 1)
    difference = np.matmul(weight, data.patches) + offset - data.targets
    if data.importance is not None:
        difference *= data.importance
    return float(np.square(difference, dtype=np.float64).mean())


def _solver(state: Quantized, config: LayerReconstruction, stop: threading.Event) -> Solve:
    del stop  # a layer takes a moment
    return functools.partial(reconstruct, state, config, Device(config.optim_device))


RECONSTRUCTION = Algorithm(
    settings=lambda config: LoopSettings(positions=config.positions, moments=True),
    solver=_solver,
    check=lambda config: Device(config.optim_device),
    needs_data=True,
)
