"""Reconstruction: rounding in closed form, from second moments, with the exact bias."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lowbit.config.refinement import LayerReconstruction
from lowbit.numerics.formats import FloatArray
from lowbit.refine.descent import descend, moments_of
from lowbit.refine.devices import Device
from lowbit.refine.modules import Draft, Module, Outcome, float_bias, float_weights
from lowbit.refine.sights import Sight, means_of

_ENOUGH_TO_SPARE = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All samples' patches and targets of a module, and the means over all positions."""

    patches: FloatArray
    targets: FloatArray
    patch_mean: FloatArray
    target_mean: FloatArray

    @classmethod
    def of(cls, sights: Sequence[Sight], bias: FloatArray | None = None) -> Seen:
        """Put the samples together, a bias that stays taken off the targets."""
        patch_mean, target_mean = means_of(sights)
        offset = np.zeros_like(target_mean) if bias is None else bias.reshape(target_mean.shape)
        return cls(
            np.concatenate([s.patches for s in sights], axis=2),
            np.concatenate([s.targets for s in sights], axis=2) - offset[:, :, None],
            patch_mean,
            target_mean - offset,
        )

    def part(self, columns: slice) -> Seen:
        """Return some of the columns, with the means of all."""
        return dataclasses.replace(
            self, patches=self.patches[:, :, columns], targets=self.targets[:, :, columns]
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The integers a module's weights may become, as groups x outputs x depth.

    All are steps from the zero point: ``low`` and ``high`` the two neighbours of each weight,
    ``lowest`` and ``highest`` what the format holds.
    """

    weight: FloatArray
    scale: FloatArray
    nearest: FloatArray
    low: FloatArray
    high: FloatArray
    lowest: FloatArray
    highest: FloatArray

    @classmethod
    def of(cls, module: Module, weight: FloatArray) -> Grid:
        """Return the two neighbours of every weight, and the nearer one."""
        layer = module.layer
        scale, zero = module.grid.broadcast(weight.ndim)
        shape = weight.shape
        w, s, z = (
            np.asarray(layer.matrix(np.broadcast_to(a, shape)), np.float32)
            for a in (weight, scale, zero)
        )
        lowest, highest = (limit - z for limit in module.limits)
        steps = w / s
        low, high = (np.clip(a, lowest, highest) for a in (np.floor(steps), np.ceil(steps)))
        return cls(w, s, np.clip(np.rint(steps), low, high), low, high, lowest, highest)


class Rounding(Protocol):
    """A way to round weights, given what samples show."""

    def __call__(self, seen: Seen, grid: Grid, *, centred: bool) -> FloatArray:
        """Return steps from the zero point; ``centred``: a bias takes off any mean error."""


def codes_of(module: Module, steps: FloatArray) -> np.ndarray:
    """Return stored integers for steps from the zero point."""
    stored = module.layer.weight(steps)
    _, zero = module.grid.broadcast(stored.ndim)
    return np.asarray(stored + zero.astype(np.float32)).astype(module.grid.format.dtype)


def reconstruct(
    draft: Draft,
    config: LayerReconstruction,
    device: Device,
    module: Module,
    sights: Sequence[Sight],
) -> Outcome:
    """Return the best rounding of one module, or the nearest where nothing better was found."""

    def rounded(seen: Seen, grid: Grid, *, centred: bool) -> FloatArray:
        put = device.put
        moments = moments_of(put(seen.patches), put(seen.targets), centred=centred)
        steps = descend(
            moments.held_to(put(grid.weight), config.ridge),
            put(grid.nearest),
            put(grid.scale),
            (put(grid.low), put(grid.high)),
            config.sweeps,
        )
        return np.asarray(device.get(steps), np.float32)

    return better_rounding(draft, config.held_out, rounded, module, sights)


def better_rounding(
    draft: Draft, held_out: float, rounded: Rounding, module: Module, sights: Sequence[Sight]
) -> Outcome:
    """Return what ``rounded`` makes of one module, with the bias that suits it, if that is better.

    A share of the samples is ``held_out`` to decide; nearest integers with a better bias, and
    what the draft has, are the other choices.
    """
    train, held = divided(sights, held_out)
    everything = Seen.of([*train, *held], module.fixed_bias)
    columns = sum(s.patches.shape[2] for s in train)
    seen = everything.part(slice(columns))
    check = everything.part(slice(columns, None)) if held else seen
    grid = Grid.of(module, float_weights(draft, module))
    bias = float_bias(draft, module)
    found = rounded(seen, grid, centred=bias is not None)
    means = everything.patch_mean, everything.target_mean
    choices = {
        "rounding": (found, exact_bias(found * grid.scale, means, bias)),
        "bias": (grid.nearest, exact_bias(grid.nearest * grid.scale, means, bias)),
        "nothing": (grid.nearest, bias),
    }
    errors = {
        name: error_of(steps * grid.scale, offset, check)
        for name, (steps, offset) in choices.items()
    }
    kept = min(errors, key=lambda name: errors[name])
    steps, offset = choices[kept]
    return Outcome(
        module.node,
        codes_of(module, steps),
        offset,
        errors["nothing"],
        errors[kept],
        kept=kept != "nothing",
    )


def divided(sights: Sequence[Sight], share: float) -> tuple[list[Sight], list[Sight]]:
    """Return the samples to solve on and those held out, spread evenly.

    Of few samples none can be spared: a layer may show only one position of each.
    """
    if share == 0 or len(sights) < _ENOUGH_TO_SPARE:
        return list(sights), []
    held = round(len(sights) * share)
    out = {int(i) for i in np.linspace(0, len(sights) - 1, held + 2)[1:-1].round()}
    return (
        [s for i, s in enumerate(sights) if i not in out],
        [s for i, s in enumerate(sights) if i in out],
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


def error_of(weight: FloatArray, bias: FloatArray | None, seen: Seen) -> float:
    """Return the mean squared error of a module's output before its activation."""
    offset = 0.0 if bias is None else bias.reshape(*weight.shape[:2], 1)
    difference = np.matmul(weight, seen.patches) + offset - seen.targets
    return float(np.square(difference, dtype=np.float64).mean())
