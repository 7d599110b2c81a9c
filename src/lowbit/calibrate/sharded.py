"""Calibration in shards: workers read, run and observe their samples, and statistics are merged.

Counts, ranges and exact sums merge to the same bits in any grouping, so neither the number of workers
nor the size of shards nor the order of completion shows in the result.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from lowbit.calibrate.observers import Observer, ObserverSpec
from lowbit.calibrate.sample_runner import SampleRunner
from lowbit.calibrate.statistics import Stats, pack_stats, unpack_stats
from lowbit.data.dataset import Data, Notes
from lowbit.data.shards import Selection, Shard
from lowbit.errors import CalibrationError, LowbitError
from lowbit.graph.session import Optimize, Session
from lowbit.graph.worker_sessions import (
    Files,
    content_hash,
    kept_session,
    packed,
    release_sessions,
)
from lowbit.parallel import cpu_count, distributed_map, worker_count
from lowbit.store import Store, content_key
from lowbit.version import __version__

SHARD_SIZE = 64
"""Samples of one result that is kept; more data leaves the results of full shards as they are."""

_GROUPS_PER_WORKER = 4
"""Results per worker: few, because they are merged here, but enough to balance the load."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """Which tensors are observed and how, and how the model is run.

    ``pooled`` are the positions of each channel of the tensors that the graph itself measures; ``mask`` is the
    input that says at which tokens the others are observed.
    """

    specs: Mapping[str, ObserverSpec]
    pooled: Mapping[str, int]
    threads: int
    optimize: Optimize
    mask: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Group:
    """Shards that one worker merges."""

    shards: Sequence[Shard]

    def __str__(self) -> str:
        return ", ".join(map(str, self.shards))


@dataclasses.dataclass(frozen=True, slots=True)
class _Result:
    """The result of a worker: merged statistics, and notes on the samples."""

    stats: Stats
    notes: tuple[Notes, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """The work on a group of shards; the model goes to each worker once."""

    observed: Observed
    key: str
    store: Store | None

    def __call__(self, group: _Group, files: Files) -> _Result:
        """Return the statistics of all samples of the shards."""
        found = [self._shard(shard, files) for shard in group.shards]
        stats = functools.reduce(operator.or_, (result.stats for result in found))
        return _Result(stats, tuple(note for result in found for note in result.notes))

    def _shard(self, shard: Shard, files: Files) -> _Result:
        data = shard.open()
        if self.store is None:
            return self._observe(shard, data, files)
        key = content_key(self.key, *(data.digest(i) for i in range(len(shard.indices))))
        kept = self.store.get(key)
        if kept is not None:
            return _unpack(kept, shard)
        result = self._observe(shard, data, files)
        self.store.put(key, _pack(result, shard))
        return result

    def _observe(self, shard: Shard, data: Data, files: Files) -> _Result:
        observed = self.observed
        running: Session = kept_session(
            self.key,
            files,
            threads=observed.threads,
            optimize=observed.optimize,
            name="the model for calibration",
        )
        observer = Observer(observed.specs)
        runner = SampleRunner(running, observed.specs, observed.pooled, observer, observed.mask)
        count = 0
        try:
            for feed in data.select(range(len(shard.indices))):
                runner.observe(runner.run(feed))
                count += 1
        except LowbitError:
            raise
        except Exception as error:  # whatever reading from far away raises
            names = shard.source.names
            name = f" ({names[count]})" if names else ""
            raise RuntimeError(f"sample {shard.indices[count]}{name}: {error}") from error
        return _Result(Stats(observer.result(), count), (shard.renumbered(data.notes),))


def collect_shards(
    probe: ir.Model,
    observed: Observed,
    data: Selection,
    store: Store | None,
    progress: Callable[[int], None],
) -> Stats:
    """Return the statistics of the samples, shared out among workers.

    ``probe`` gives what is observed. Finished shards are kept in ``store``, and those there are not
    run again.
    """
    if not len(data):
        raise CalibrationError("the data holds no samples; at least one is needed")
    merged: Stats | None = None
    with packed(probe) as files:
        key = content_key(content_hash(files), _described(observed), __version__)
        task = _Task(observed, key, store)
        groups = _groups(data)
        try:
            for found in distributed_map(task, groups, name="calibrate", shared=files):
                for notes in found.notes:
                    data.data.add(notes)
                merged = found.stats if merged is None else merged | found.stats
                progress(merged.samples)
        finally:
            release_sessions()
    if merged is None:
        raise CalibrationError("the data holds no samples; at least one is needed")
    return merged


def _groups(data: Selection) -> list[_Group]:
    shards = data.shards(SHARD_SIZE)
    workers = worker_count() or cpu_count()
    size = max(1, len(shards) // (workers * _GROUPS_PER_WORKER))
    return [_Group(shards.part(at, at + size)) for at in range(0, len(shards), size)]


def _described(observed: Observed) -> str:
    """Return everything about the observation that the statistics depend on."""
    rows = [f"{name} {spec!r}" for name, spec in observed.specs.items()]
    return "\n".join(
        [
            *rows,
            repr(dict(observed.pooled)),
            str(observed.threads),
            observed.optimize,
            observed.mask,
        ]
    )


def _pack(result: _Result, shard: Shard) -> bytes:
    """Return a result as bytes: what was noted of the samples by their order, then the statistics."""
    (notes,) = result.notes
    digests = [notes.digests[index].hex() for index in shard.indices]
    header = json.dumps({"digests": digests, "zero": notes.is_all_zero}).encode()
    return len(header).to_bytes(8, "little") + header + pack_stats(result.stats)


def _unpack(data: bytes, shard: Shard) -> _Result:
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    digests = map(bytes.fromhex, header["digests"])
    notes = Notes(dict(zip(shard.indices, digests, strict=True)), header["zero"])
    return _Result(unpack_stats(data[end:]), (notes,))
