"""Layer samples: columns of a layer's input and its target, in memory or in files."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from lowbit.graph.session import Feed
from lowbit.graph.store import Store
from lowbit.numerics.formats import FloatArray
from lowbit.numerics.spacing import evenly_inside
from lowbit.ops.geometry import Array, Floats, LinearLayer, Positions
from lowbit.refine.descent import Moments

_T = TypeVar("_T")

_FEWEST_POSITIONS = 16
# Unknowns of a layer to a position of a sample: 64 samples give eight times as many equations.
_DEEP = 8
# With more samples than this, their number makes up for positions.
_MANY_SAMPLES = 64
# Fewer do not show enough kinds of inputs, and leave none to be held out; a large sample shows more.
_FEWEST_SAMPLES, _FEWEST_LARGE_SAMPLES = 32, 24
# Samples whose moments are taken together.
_AT_ONCE = 8


@dataclasses.dataclass(frozen=True, slots=True)
class LayerTarget:
    """The float model's side of a layer sample: targets, at which positions, and the output's shape.

    ``target_sum`` adds up all positions, where that is asked for.
    """

    targets: FloatArray
    at: Positions
    shape: tuple[int, ...]
    target_sum: FloatArray | None = None
    float_patches: FloatArray | None = None


class Columns(Protocol):
    """Inputs and outputs of a layer at the same positions, to compute moments from."""

    @property
    def patches(self) -> FloatArray:
        """Inputs: groups x depth x positions."""

    @property
    def targets(self) -> FloatArray:
        """Outputs: groups x outputs x positions."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerColumns:
    """One layer sample at some positions, without sums over the others."""

    patches: FloatArray
    targets: FloatArray

    @property
    def count(self) -> int:
        """How many positions there are."""
        return int(self.patches.shape[2])


@dataclasses.dataclass(frozen=True, slots=True)
class SampleInMemory:
    """One layer sample: inputs and targets at some positions of the output.

    ``patches`` (groups x depth x positions) are the quantized model's layer inputs, ``float_patches``
    the float model's, if asked for; ``targets`` (groups x outputs x positions) are the float outputs to
    match. ``patch_sum`` and ``target_sum`` add up all ``count`` positions.
    """

    patches: FloatArray
    targets: FloatArray
    patch_sum: FloatArray
    target_sum: FloatArray
    count: int
    float_patches: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        """How much memory it takes, but for its sums."""
        arrays = (self.patches, self.targets, self.float_patches)
        return sum(array.nbytes for array in arrays if array is not None)


_ARRAYS = ("patches", "targets", "float_patches", "patch_sum", "target_sum")


class SampleOnDisk:
    """The same in files, mapped into memory while they are read."""

    def __init__(self, store: Store, layer: str, index: int, sample: SampleInMemory) -> None:
        """Move a layer sample into files, its sums too: those of thousands of samples are megabytes."""
        self._store, self._layer, self._index = store, layer, index
        self.count = sample.count
        arrays = {name: getattr(sample, name) for name in _ARRAYS}
        self._names = [name for name, array in arrays.items() if array is not None]
        for name in self._names:
            store.put(index, f"{layer} {name}", arrays[name])

    def _mapped(self, name: str) -> FloatArray:
        return self._store.mapped(self._index, f"{self._layer} {name}")

    @property
    def patches(self) -> FloatArray:
        """The quantized model's layer inputs."""
        return self._mapped("patches")

    @property
    def targets(self) -> FloatArray:
        """The float outputs."""
        return self._mapped("targets")

    @property
    def float_patches(self) -> FloatArray | None:
        """The float model's layer inputs, if they were asked for."""
        return self._mapped("float_patches") if "float_patches" in self._names else None

    @property
    def patch_sum(self) -> FloatArray:
        """The sum of all layer inputs."""
        return self._store.get(self._index, f"{self._layer} patch_sum")

    @property
    def target_sum(self) -> FloatArray:
        """The sum of all float outputs."""
        return self._store.get(self._index, f"{self._layer} target_sum")

    def drop(self) -> None:
        """Remove the files."""
        for name in self._names:
            self._store.drop(self._index, f"{self._layer} {name}")


LayerSample: TypeAlias = SampleInMemory | SampleOnDisk


def enough_positions(layer: LinearLayer, usual: int, samples: int, *, large: bool = False) -> int:
    """Return the number of positions of each sample to compute moments at, given the number of samples.

    Equations follow the unknowns. A depthwise layer's nine are known well long before those of a
    layer that is hundreds deep, while its patches fill nine times its input; a layer that is
    thousands deep would have fewer equations than unknowns from the usual positions of few samples.
    Of many samples fewer positions each are taken, so that memory does not grow with them; of few
    ``large`` ones, which have as many, more.
    """
    enough = max(_FEWEST_POSITIONS, min(2 * layer.depth, max(usual, layer.depth // _DEEP)))
    least = _FEWEST_SAMPLES / max(samples, 1) if large else 0.0
    return math.ceil(enough * max(least, min(1.0, _MANY_SAMPLES / max(samples, 1))))


def enough_samples(unknowns: Sequence[float], samples: int, *, large: bool = False) -> int:
    """Return how many of the ``samples`` are enough, given each layer's unknowns per position.

    The middle one of the layers decides: most show so many positions of each sample that a few
    samples say all there is, while for rows of a matrix, one to a sample, every sample counts.
    """
    if not unknowns:
        return samples
    fewest = _FEWEST_LARGE_SAMPLES if large else _FEWEST_SAMPLES
    return min(samples, max(fewest, math.ceil(_DEEP * float(np.median(unknowns)))))


def take_target(
    layer: LinearLayer,
    y: FloatArray,
    x: FloatArray | None,
    positions: int,
    random: np.random.Generator,
) -> LayerTarget:
    """Return what one sample of the float model shows of a layer at random positions."""
    # In no order, so that some that follow each other are from anywhere.
    at = random.permutation(layer.count(y.shape))[:positions]
    total = np.asarray(layer.flat(y).sum(axis=1)).reshape(layer.groups, layer.outputs)
    other = None if x is None else layer.patches(x, at, y.shape)
    return LayerTarget(layer.values(y, at), at, tuple(y.shape), total, other)


def take_columns(layer: LinearLayer, x: Array, target: LayerTarget, floats: Floats) -> LayerColumns:
    """Return the quantized model's layer inputs with a target; ``floats`` reads what is stored."""
    return LayerColumns(layer.patches(x, target.at, target.shape, floats), target.targets)


def take_sample(layer: LinearLayer, x: FloatArray, target: LayerTarget) -> SampleInMemory:
    """Return the quantized model's layer inputs with a target; sums are of what the target has."""
    patches, targets, total = (
        layer.patches(x, target.at, target.shape),
        target.targets,
        target.target_sum,
    )
    if total is None:
        sums = patches.sum(axis=2), targets.sum(axis=2)
        return SampleInMemory(patches, targets, *sums, len(target.at), target.float_patches)
    return SampleInMemory(
        patches=patches,
        targets=targets,
        patch_sum=layer.patch_sums(x, target.shape),
        target_sum=total,
        count=layer.count(target.shape),
        float_patches=target.float_patches,
    )


def held_out_split(
    samples: Sequence[LayerSample], share: float
) -> tuple[list[LayerSample], list[LayerSample]]:
    """Return the samples to solve on and those held out, spread evenly.

    Of few samples none can be held out: a layer may show only one position of each.
    """
    out = held_out_numbers(len(samples), share)
    return (
        [s for i, s in enumerate(samples) if i not in out],
        [s for i, s in enumerate(samples) if i in out],
    )


def held_out_numbers(count: int, share: float, *, large: bool = False) -> frozenset[int]:
    """Return the numbers of the held-out samples, evenly spaced; none of few samples."""
    if share == 0 or count < (_FEWEST_LARGE_SAMPLES if large else _FEWEST_SAMPLES):
        return frozenset()
    held = round(count * share)
    return frozenset(evenly_inside(count, held))


def means_of(samples: Sequence[LayerSample]) -> tuple[FloatArray, FloatArray]:
    """Return the means of patches and targets over all positions of all samples."""
    count = np.float64(sum(s.count for s in samples))
    first = samples[0]
    patches, targets = (each.astype(np.float64) for each in (first.patch_sum, first.target_sum))
    for sample in samples[1:]:
        patches += sample.patch_sum
        targets += sample.target_sum
    return (patches / count).astype(np.float32), (targets / count).astype(np.float32)


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
        x outputs x 1) it is subtracted from the targets, and they are about zero.
        """
        x = self.patch_mean[:, None, :]
        if bias is not None:
            return Moments(self.inputs, self.products - bias * x)
        return Moments(
            self.inputs - self.patch_mean[:, :, None] * x,
            self.products - self.target_mean[:, :, None] * x,
        )


def sums_of(samples: Sequence[LayerSample]) -> Sums:
    """Return the sums over all columns, a few samples in memory at a time."""
    first = samples[0]
    groups, depth, _ = first.patches.shape
    outputs = first.targets.shape[1]
    inputs = np.zeros((groups, depth, depth), np.float32)
    products = np.zeros((groups, outputs, depth), np.float32)
    patch_sum = np.zeros((groups, depth), np.float64)
    target_sum = np.zeros((groups, outputs), np.float64)
    count = 0
    for start in range(0, len(samples), _AT_ONCE):
        some = samples[start : start + _AT_ONCE]
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


def grouped(items: Iterable[_T], size: int) -> Iterator[list[_T]]:
    """Yield lists of ``size`` items each, the last one of what is left."""
    rest = iter(items)
    while group := list(itertools.islice(rest, size)):
        yield group


def batched(feeds: Callable[[], Iterable[Feed]], size: int) -> Iterator[Feed]:
    """Yield feeds of ``size`` samples each, one after another along the first axis."""
    for group in grouped(feeds(), size):
        yield {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}
