"""Reconstruction: rounding in closed form, from second moments, with the exact bias."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from lowbit.config.refine import Reconstruct
from lowbit.numerics.formats import Floats
from lowbit.refine.descent import descend, moments_of
from lowbit.refine.modules import Draft, Module, Outcome, float_bias, float_weights
from lowbit.refine.walk import Sight


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """All samples' patches and targets of a module, and the means over all positions."""

    patches: Floats
    targets: Floats
    patch_mean: Floats
    target_mean: Floats

    @classmethod
    def of(cls, sights: Sequence[Sight]) -> Seen:
        """Put the samples together."""
        count = sum(s.count for s in sights)
        return cls(
            np.concatenate([s.patches for s in sights], axis=2),
            np.concatenate([s.targets for s in sights], axis=2),
            _added([s.patch_sum for s in sights]) / np.float32(count),
            _added([s.target_sum for s in sights]) / np.float32(count),
        )

    def part(self, columns: slice) -> Seen:
        """Return some of the columns, with the means of all."""
        return dataclasses.replace(
            self, patches=self.patches[:, :, columns], targets=self.targets[:, :, columns]
        )


def _added(parts: Sequence[Floats]) -> Floats:
    return np.asarray(np.stack(parts).sum(axis=0, dtype=np.float64), np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Grid:
    """The integers a module's weights may become, as groups x outputs x depth."""

    weight: Floats
    scale: Floats
    nearest: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, module: Module, weight: Floats) -> Grid:
        """Return the two neighbours of every weight, and the nearer one."""
        layer = module.layer
        scale, zero = module.params.broadcast(weight.ndim)
        shape = weight.shape
        w, s, z = (
            np.asarray(layer.matrix(np.broadcast_to(a, shape)), np.float32)
            for a in (weight, scale, zero)
        )
        lowest, highest = module.limits
        steps = w / s
        low, high = (np.clip(a, lowest - z, highest - z) for a in (np.floor(steps), np.ceil(steps)))
        return cls(w, s, np.clip(np.rint(steps), low, high), low, high)


def codes_of(module: Module, steps: Floats) -> np.ndarray:
    """Return stored integers for steps from the zero point."""
    stored = module.layer.weight(steps)
    _, zero = module.params.broadcast(stored.ndim)
    return np.asarray(stored + zero.astype(np.float32)).astype(module.params.format.dtype)


def reconstruct(
    draft: Draft, module: Module, sights: Sequence[Sight], config: Reconstruct
) -> Outcome:
    """Return the best rounding of one module, or the nearest where nothing better was found."""
    train, held = divided(sights, config.held_out)
    everything = Seen.of([*train, *held])
    columns = sum(s.patches.shape[2] for s in train)
    seen = everything.part(slice(columns))
    check = everything.part(slice(columns, None)) if held else seen
    grid = Grid.of(module, float_weights(draft, module))
    bias = float_bias(draft, module)
    if bias is not None and bias.size != module.layer.groups * module.layer.outputs:
        bias = None
    moments = moments_of(seen.patches, seen.targets, centred=bias is not None)
    found = descend(
        moments.held_to(grid.weight, config.ridge),
        grid.nearest,
        grid.scale,
        (grid.low, grid.high),
        config.sweeps,
    )
    choices = {
        "rounding": (found, exact_bias(found * grid.scale, everything, bias)),
        "bias": (grid.nearest, exact_bias(grid.nearest * grid.scale, everything, bias)),
        "nothing": (grid.nearest, bias),
    }
    errors = {
        name: error_of(steps * grid.scale, offset, check)
        for name, (steps, offset) in choices.items()
    }
    kept = min(errors, key=lambda name: errors[name])
    steps, offset = choices[kept]
    return Outcome(
        module.node, codes_of(module, steps), offset, errors["nothing"], errors[kept], kept
    )


def divided(sights: Sequence[Sight], share: float) -> tuple[list[Sight], list[Sight]]:
    """Return the samples to solve on and those held out, spread evenly."""
    if share == 0 or len(sights) < 2:
        return list(sights), []
    held = max(1, round(len(sights) * share))
    out = {int(i) for i in np.linspace(0, len(sights) - 1, held + 2)[1:-1].round()}
    return (
        [s for i, s in enumerate(sights) if i not in out],
        [s for i, s in enumerate(sights) if i in out],
    )


def exact_bias(weight: Floats, seen: Seen, bias: Floats | None) -> Floats | None:
    """Return the bias under which the mean output is the float one's, over all positions."""
    if bias is None:
        return None
    mean = seen.target_mean - np.matmul(weight, seen.patch_mean[:, :, None])[:, :, 0]
    return np.asarray(mean.reshape(bias.shape), np.float32)


def error_of(weight: Floats, bias: Floats | None, seen: Seen) -> float:
    """Return the mean squared error of a module's output before its activation."""
    offset = 0.0 if bias is None else bias.reshape(*weight.shape[:2], 1)
    difference = np.matmul(weight, seen.patches) + offset - seen.targets
    return float(np.square(difference, dtype=np.float64).mean())
