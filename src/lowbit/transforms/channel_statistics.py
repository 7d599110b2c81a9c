"""Statistics of channels from one pass over the data, such as how large each becomes before a Clip."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.session import Array, Feed, session
from lowbit.numerics.formats import DoubleArray
from lowbit.parallel import ordered_map


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelSizes:
    """Of each channel: the greatest number, the largest without its sign, and the mean square."""

    maximum: DoubleArray
    largest: DoubleArray
    power: DoubleArray


def channel_sizes(
    model: ir.Model,
    wanted: Mapping[str, int],
    data: Iterable[Feed],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, ChannelSizes]:
    """Return the sizes along an axis of each tensor, by name; none at all if there is no data."""

    def of(name: str, array: Array) -> DoubleArray:
        return _sizes(array, wanted[name])

    found = reduce_channels(model, list(wanted), data, of, _join_sizes, progress)
    return {
        name: ChannelSizes(greatest, largest, squares / count)
        for name, (greatest, largest, squares, count) in found.items()
    }


def _sizes(array: Array, axis: int) -> DoubleArray:
    """Return rows by channel: greatest, largest without sign, mean square, and one sample."""
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    greatest, least = rows.max(axis=1, initial=-np.inf), rows.min(axis=1, initial=np.inf)
    squares = np.einsum("ij,ij->i", rows, rows) / max(rows.shape[1], 1)
    largest = np.maximum(np.maximum(greatest, -least), 0)
    return np.asarray([greatest, largest, squares, np.ones(len(rows))], np.float64)


def _join_sizes(one: DoubleArray, other: DoubleArray) -> DoubleArray:
    return np.concatenate([np.maximum(one[:2], other[:2]), one[2:] + other[2:]])


def reduce_channels(
    model: ir.Model,
    names: Sequence[str],
    data: Iterable[Feed],
    of: Callable[[str, Array], DoubleArray],
    join: Callable[[DoubleArray, DoubleArray], DoubleArray],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, DoubleArray]:
    """Return by tensor name what ``of`` says of each sample's array, joined over all samples.

    Samples run in parallel, and of each only what ``of`` returns is kept.
    """
    joined: dict[str, DoubleArray] = {}
    if not names:
        return joined
    with session(
        model, names, threads=1, optimize="all", name="the model for equalization"
    ) as running:

        def work(feed: Feed) -> list[DoubleArray]:
            arrays = running.run(names, feed)
            return [of(name, array) for name, array in zip(names, arrays, strict=True)]

        for count, found in enumerate(ordered_map(work, iter(data), os.cpu_count() or 1), 1):
            for name, new in zip(names, found, strict=True):
                joined[name] = join(joined[name], new) if name in joined else new
            progress(count)
    return joined
