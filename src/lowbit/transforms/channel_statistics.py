"""Statistics of channels from one pass over the data, such as how large each becomes before a Clip."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from lowbit.data.shards import Selection, Shard
from lowbit.graph.parts import is_large, run_in_parts
from lowbit.graph.pooling import (
    add_maxima,
    add_mean_squares,
    highest_of,
    mean_square_of,
    poolable,
    schedule_early,
)
from lowbit.graph.session import Array, Feed, Session, session, with_outputs
from lowbit.graph.sharing import sharing_of
from lowbit.graph.worker_sessions import Files, content_hash, kept_session, packed
from lowbit.numerics.formats import DoubleArray
from lowbit.ops.traits import non_negative
from lowbit.parallel import distributed_map, ordered_map, worker_count

# Large samples that are looked at: each shows a channel at tens of thousands of positions.
_LARGE_SAMPLES = 16


@dataclasses.dataclass(frozen=True, slots=True)
class ChannelSizes:
    """Of each channel: the greatest number, the largest without its sign, its reach, and the mean square.

    A channel of few positions may never have gone as far as it does on other samples. ``reach`` is therefore
    the geometric mean of the largest number of all samples and of the mean of each sample's largest.
    """

    maximum: DoubleArray
    largest: DoubleArray
    reach: DoubleArray
    power: DoubleArray


def channel_sizes(
    model: ir.Model,
    wanted: Mapping[str, int],
    data: Iterable[Feed],
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, ChannelSizes]:
    """Return the channel sizes along an axis of each tensor, by name; none if there is no data.

    Of many large samples some are looked at, spread evenly.
    """
    bounded = non_negative(model.graph)
    maps = () if is_large(model) else poolable(model.graph)
    pooled = [
        name for name, axis in wanted.items() if name in maps and name in bounded and axis == 1
    ]
    outputs = {
        output: name for name in pooled for output in (highest_of(name), mean_square_of(name))
    }
    outputs |= {name: name for name in wanted if name not in pooled}

    def of(output: str, array: Array) -> DoubleArray:
        name = outputs[output]
        if output == name:
            return _sizes(array, wanted[name], signed=name not in bounded)
        return _pooled_sizes(array, is_mean=output == mean_square_of(name))

    probe = _with_pools(model, pooled)
    found = reduce_channels(probe, list(outputs), _enough(model, data), of, _join_sizes, progress)
    rows = {name: found[name] for name in found if name not in pooled}
    if found:
        rows |= {n: _together(found[highest_of(n)], found[mean_square_of(n)]) for n in pooled}
    return {
        name: ChannelSizes(greatest, largest, np.sqrt(largest * total / count), squares / count)
        for name, (greatest, largest, total, squares, count) in rows.items()
    }


def _enough(model: ir.Model, data: Iterable[Feed]) -> Iterable[Feed]:
    """Return the samples that are looked at."""
    if not isinstance(data, Selection) or len(data) <= _LARGE_SAMPLES:
        return data
    is_large_sample = sharing_of(next(iter(data), None), model).one_by_one
    return data.spread(_LARGE_SAMPLES) if is_large_sample else data


def _with_pools(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Return a model that takes the greatest number and the mean square of channels of maps itself.

    To hand the maps out and look at them takes as long as to compute them.
    """
    if not names:
        return model
    probe = with_outputs(model, ())
    given = len(probe.graph.outputs)
    add_maxima(probe.graph, names)
    add_mean_squares(probe.graph, names)
    schedule_early(probe.graph, given)
    return probe


def _together(highest: DoubleArray, squares: DoubleArray) -> DoubleArray:
    """Return the sizes of maps from those of their greatest numbers and of their mean squares."""
    found = highest.copy()
    found[3] = squares[2]
    # Looking for the greatest number may lose one that is not a number, adding squares up does not.
    found[:3, np.isnan(found[3])] = np.nan
    return found


def _pooled_sizes(array: Array, *, is_mean: bool) -> DoubleArray:
    """Return the rows of what the graph took of each sample's channels, none below zero."""
    rows = array.reshape(len(array), -1)
    found = np.ones((5, rows.shape[1]))
    if len(rows) == 1:
        found[:4] = rows[0]
    else:
        found[:4] = rows.mean(axis=0) if is_mean else rows.max(axis=0)
    np.maximum(found[1:3], 0, out=found[1:3])
    return found


def _sizes(array: Array, axis: int, *, signed: bool) -> DoubleArray:
    """Return rows by channel: greatest, largest without sign, that again, mean square, and one sample."""
    channels = array.shape[axis]
    # Channels of one sample lie as they are wanted.
    first = array if axis == 1 and len(array) == 1 else np.moveaxis(array, axis, 0)
    rows = first.reshape(channels, -1)
    found = np.ones((5, channels))
    found[0] = rows.max(axis=1, initial=-np.inf)
    found[1] = np.maximum(found[0], -rows.min(axis=1, initial=np.inf)) if signed else found[0]
    found[1] = found[2] = np.maximum(found[1], 0)
    found[3] = np.einsum("ij,ij->i", rows, rows) / max(rows.shape[1], 1)
    return found


def _join_sizes(one: DoubleArray, other: DoubleArray) -> DoubleArray:
    return np.concatenate([np.maximum(one[:2], other[:2]), one[2:] + other[2:]])


Of = Callable[[str, Array], DoubleArray]
Join = Callable[[DoubleArray, DoubleArray], DoubleArray]

_EXACT = (np.maximum, np.minimum)
"""Joins that no grouping changes: workers may do part of them."""

_SHARD = 16


def reduce_channels(
    model: ir.Model,
    names: Sequence[str],
    data: Iterable[Feed],
    of: Of,
    join: Join,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, DoubleArray]:
    """Return by tensor name what ``of`` says of each sample's array, channels last, joined over all samples.

    Samples run in parallel, and of each only what ``of`` returns is kept. They are joined in their
    order, so that workers and threads give the same bits.
    """
    if not names:
        return {}
    is_shared = isinstance(data, Selection) and len(data) > 0 and worker_count() is not None
    found = _by_workers if is_shared else _in_parts if is_large(model) else _by_threads
    joined: DoubleArray | None = None
    ends: list[int] = []
    done = 0
    for count, rows in found(model, names, data, of, join):  # type: ignore[arg-type]
        # All tensors at once: to join a hundred short rows one by one takes longer than to find them.
        every = np.concatenate(rows, axis=-1)
        joined = every if joined is None else join(joined, every)
        ends = list(itertools.accumulate(row.shape[-1] for row in rows))
        if count:
            progress(done := done + count)
    if joined is None:
        return {}
    return dict(zip(names, np.split(joined, ends[:-1], axis=-1), strict=True))


_Found = Iterator[tuple[int, list[DoubleArray]]]
"""How many samples are done with each part, and the part."""


def _by_threads(
    model: ir.Model, names: Sequence[str], data: Iterable[Feed], of: Of, join: Join
) -> _Found:
    del join
    feeds = iter(data)
    some = list(itertools.islice(feeds, 1))
    sharing = sharing_of(some[0] if some else None, model)
    threads = sharing.threads
    with session(model, names, threads=threads, optimize="all", name=_NAME) as running:
        reduced = _Reduced(tuple(names), of, None)
        work = functools.partial(reduced.of_feed, running)
        for rows in ordered_map(work, itertools.chain(some, feeds), sharing.samples):
            yield 1, rows


def _in_parts(
    model: ir.Model, names: Sequence[str], data: Iterable[Feed], of: Of, join: Join
) -> _Found:
    """Run a large model part by part, on some samples at a time."""
    del join
    feeds = iter(data)
    while some := list(itertools.islice(feeds, _SHARD)):
        found = run_in_parts(
            model, names, some, lambda _, *value: of(*value), optimize="all", name=_NAME
        )
        for rows in found:
            yield 1, [rows[name] for name in names]


_NAME = "the model for equalization"


@dataclasses.dataclass(frozen=True)
class _Reduced:
    """Reduces samples; with ``join`` workers combine their own results."""

    names: tuple[str, ...]
    of: Of
    join: Join | None
    key: str = ""

    def of_feed(self, running: Session, feed: Feed) -> list[DoubleArray]:
        """Return what is found of one sample."""
        arrays = running.run(self.names, feed)
        return [self.of(name, array) for name, array in zip(self.names, arrays, strict=True)]

    def __call__(self, shard: Shard, files: Files) -> list[list[DoubleArray]]:
        """Return what is found of a shard in a worker: of each sample, or of all together."""
        running = kept_session(self.key, files, threads=1, optimize="all", name=_NAME)
        feeds = shard.open().select(range(len(shard.indices)))
        rows = [self.of_feed(running, feed) for feed in feeds]
        if self.join is None:
            return rows
        return [[functools.reduce(self.join, column) for column in zip(*rows, strict=True)]]


def _by_workers(
    model: ir.Model, names: Sequence[str], data: Selection, of: Of, join: Join
) -> _Found:
    with packed(with_outputs(model, names)) as files:
        key = f"{content_hash(files)} all"
        task = _Reduced(tuple(names), of, join if join in _EXACT else None, key)
        shards = data.shards(_SHARD)
        parts = distributed_map(task, shards, name="equalize", shared=files)
        for shard, rows in zip(shards, parts, strict=True):
            for index, row in enumerate(rows):
                yield (0 if index else len(shard.indices)), row
