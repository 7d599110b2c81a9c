"""What samples show of a module: columns of its input and output, in memory or in files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from lowbit.numerics.formats import FloatArray
from lowbit.ops.linear import Layer, Positions
from lowbit.refine.descent import Moments
from lowbit.refine.store import DiskStore

_FEWEST_POSITIONS = 16
# Unknowns of a layer to a position of a sample: 64 samples give eight times as many equations.
_DEEP = 8
# With more samples than this, their number makes up for positions.
_MANY_SAMPLES = 64
# Samples whose moments are taken together.
_AT_ONCE = 8


class Sight(Protocol):
    """What one sample shows of a module, at some positions of its output.

    ``patches`` (groups x depth x positions) are the quantized model's input, ``float_patches`` the
    float model's, if asked for; ``targets`` (groups x outputs x positions) are the float model's
    output. ``patch_sum`` and ``target_sum`` add up all ``count`` positions.
    """

    @property
    def patches(self) -> FloatArray:
        """The quantized model's input."""

    @property
    def targets(self) -> FloatArray:
        """The float model's output."""

    @property
    def float_patches(self) -> FloatArray | None:
        """The float model's input."""

    @property
    def patch_sum(self) -> FloatArray:
        """All patches added up."""

    @property
    def target_sum(self) -> FloatArray:
        """All targets added up."""

    @property
    def count(self) -> int:
        """How many positions there are in all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """The float model's side of a sight: targets, where they are, and the output's shape."""

    targets: FloatArray
    target_sum: FloatArray
    at: Positions
    shape: tuple[int, ...]
    float_patches: FloatArray | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class SeenSight:
    """A sight in memory."""

    patches: FloatArray
    targets: FloatArray
    patch_sum: FloatArray
    target_sum: FloatArray
    count: int
    float_patches: FloatArray | None = None


class StoredSight:
    """A sight in files, mapped into memory while it is read."""

    def __init__(self, store: DiskStore, module: str, sample: int, sight: SeenSight) -> None:
        """Move a sight into files."""
        self._store, self._sample = store, sample
        self.patch_sum, self.target_sum = sight.patch_sum, sight.target_sum
        self.count = sight.count
        arrays = {
            "patches": sight.patches,
            "targets": sight.targets,
            "float patches": sight.float_patches,
        }
        self._keys = {n: f"{module} {n}" for n, array in arrays.items() if array is not None}
        for name, key in self._keys.items():
            store.put(sample, key, arrays[name])  # type: ignore[arg-type]  # those of None are out

    @property
    def patches(self) -> FloatArray:
        """The quantized model's input."""
        return self._store.mapped(self._sample, self._keys["patches"])

    @property
    def targets(self) -> FloatArray:
        """The float model's output."""
        return self._store.mapped(self._sample, self._keys["targets"])

    @property
    def float_patches(self) -> FloatArray | None:
        """The float model's input, if it was asked for."""
        key = self._keys.get("float patches")
        return None if key is None else self._store.mapped(self._sample, key)

    def drop(self) -> None:
        """Remove the files."""
        for key in self._keys.values():
            self._store.drop(self._sample, key)


def enough_positions(layer: Layer, usual: int, samples: int) -> int:
    """Return at how many positions of each of so many samples to look for moments.

    Equations follow the unknowns. A depthwise layer's nine are known well long before those of a
    layer that is hundreds deep, while its patches fill nine times its input; a layer that is
    thousands deep would have fewer equations than unknowns from the usual positions of few samples.
    Many samples are each looked at less, so that memory does not grow with them.
    """
    enough = max(_FEWEST_POSITIONS, min(2 * layer.depth, max(usual, layer.depth // _DEEP)))
    return math.ceil(enough * min(1.0, _MANY_SAMPLES / max(samples, 1)))


def aim(
    layer: Layer, y: FloatArray, x: FloatArray | None, positions: int, random: np.random.Generator
) -> Goal:
    """Return what one sample of the float model shows of a layer at random positions."""
    # In no order, so that some that follow each other are from anywhere.
    at = random.permutation(layer.count(y.shape))[:positions]
    total = np.asarray(layer.flat(y).sum(axis=1)).reshape(layer.groups, layer.outputs)
    other = None if x is None else layer.patches(x, at, y.shape)
    return Goal(layer.values(y, at), total, at, tuple(y.shape), other)


def see(layer: Layer, x: FloatArray, goal: Goal) -> SeenSight:
    """Return the sight of the quantized model's input beside a goal."""
    return SeenSight(
        patches=layer.patches(x, goal.at, goal.shape),
        targets=goal.targets,
        patch_sum=layer.patch_sums(x, goal.shape),
        target_sum=goal.target_sum,
        count=layer.count(goal.shape),
        float_patches=goal.float_patches,
    )


def means_of(sights: Sequence[Sight]) -> tuple[FloatArray, FloatArray]:
    """Return the means of patches and targets over all positions of all samples."""
    count = np.float64(sum(s.count for s in sights))
    patches = np.stack([s.patch_sum for s in sights]).sum(axis=0, dtype=np.float64) / count
    targets = np.stack([s.target_sum for s in sights]).sum(axis=0, dtype=np.float64) / count
    return patches.astype(np.float32), targets.astype(np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """Means over all columns: of patches, of targets, and of the products of both with patches."""

    inputs: FloatArray
    products: FloatArray
    patch_mean: FloatArray
    target_mean: FloatArray

    def moments(self, bias: FloatArray | None) -> Moments:
        """Return second moments.

        Without a ``bias`` they are about the means, as if any bias could be had; with one (groups
        x outputs x 1) it is taken off the targets, and they are about zero.
        """
        x = self.patch_mean[:, None, :]
        if bias is not None:
            return Moments(self.inputs, self.products - bias * x)
        return Moments(
            self.inputs - self.patch_mean[:, :, None] * x,
            self.products - self.target_mean[:, :, None] * x,
        )


def sums_of(sights: Sequence[Sight]) -> Sums:
    """Return the sums over all columns, a few samples in memory at a time."""
    first = sights[0]
    groups, depth, _ = first.patches.shape
    outputs = first.targets.shape[1]
    inputs = np.zeros((groups, depth, depth), np.float32)
    products = np.zeros((groups, outputs, depth), np.float32)
    patch_sum = np.zeros((groups, depth), np.float64)
    target_sum = np.zeros((groups, outputs), np.float64)
    count = 0
    for start in range(0, len(sights), _AT_ONCE):
        some = sights[start : start + _AT_ONCE]
        patches = np.concatenate([s.patches for s in some], axis=2)
        targets = np.concatenate([s.targets for s in some], axis=2)
        across = patches.swapaxes(1, 2)
        inputs += patches @ across
        products += targets @ across
        patch_sum += patches.sum(axis=2, dtype=np.float64)
        target_sum += targets.sum(axis=2, dtype=np.float64)
        count += patches.shape[2]
    return Sums(
        inputs / np.float32(count),
        products / np.float32(count),
        (patch_sum / count).astype(np.float32),
        (target_sum / count).astype(np.float32),
    )
