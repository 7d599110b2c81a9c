"""Statistics of channels from one pass over the data, such as how large each becomes before a Clip."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array, Feed, session
from lowbit.numerics.formats import DoubleArray
from lowbit.ops.channels import ChannelLayout
from lowbit.parallel import ordered_map


def channel_maxima(
    model: ir.Model,
    wanted: Sequence[tuple[ir.Value, ChannelLayout]],
    data: Iterable[Feed],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, DoubleArray]:
    """Return the maxima by tensor name; none at all if there is no data."""
    layouts = {tensor_name(value): layout for value, layout in wanted}

    def of(name: str, array: Array) -> DoubleArray:
        return _maxima(array, layouts[name])

    return reduce_channels(model, list(layouts), data, of, np.maximum, progress)


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


def _maxima(array: Array, layout: ChannelLayout) -> DoubleArray:
    """Return the maximum of each channel; not a number where one is."""
    others = tuple(axis for axis in range(array.ndim) if axis != layout.axis)
    found = array.max(axis=others, initial=-np.inf)
    return np.asarray(found.reshape(-1, layout.repeat).max(axis=1), np.float64)
