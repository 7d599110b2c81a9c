"""Run models on samples in workers; the results are those of threads in this process."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import onnx_ir as ir

from lowbit.graph.session import Array, Feed, Optimize, Session, with_outputs
from lowbit.graph.worker_sessions import content_hash, kept_session, packed, release_sessions
from lowbit.parallel import distributed_map, worker_count
from lowbit.store import content_key

Outputs = Mapping[str, Array]
Item = tuple[int, Feed]
Take = Callable[[Session, int, Feed], "Outputs | None"]

CHUNK = 8
"""Samples that a worker runs at a time."""


@dataclasses.dataclass(frozen=True)
class WorkerRun:
    """A model for workers, the tensors wanted of it, and what takes them from a session for a sample."""

    model: ir.Model
    names: Sequence[str]
    name: str
    optimize: Optimize
    take: Take


@dataclasses.dataclass(frozen=True)
class _Part:
    """The same without its model, which goes to each worker once: its files begin with ``prefix``."""

    key: str
    prefix: str
    name: str
    optimize: Optimize
    take: Take

    def session(self, shared: Mapping[str, Array]) -> Session:
        start = len(self.prefix)
        files = {n[start:]: data for n, data in shared.items() if n.startswith(self.prefix)}
        return kept_session(self.key, files, threads=1, optimize=self.optimize, name=self.name)


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Samples that one worker runs, one after another."""

    items: tuple[Item, ...]

    def __str__(self) -> str:
        return f"samples {self.items[0][0]} to {self.items[-1][0]}"


@dataclasses.dataclass(frozen=True)
class _Task:
    """The work on a chunk: of each sample, what each model gives."""

    parts: tuple[_Part, ...]

    def __call__(
        self, chunk: _Chunk, shared: Mapping[str, Array]
    ) -> list[tuple[Outputs | None, ...]]:
        columns = []
        for part in self.parts:  # one model after another: few are kept open
            running = part.session(shared)
            columns.append([part.take(running, index, feed) for index, feed in chunk.items])
        return list(zip(*columns, strict=True))


def run_on_workers(
    runs: Sequence[WorkerRun], items: Iterator[Item]
) -> Iterator[tuple[Feed, tuple[Outputs | None, ...]]]:
    """Yield each sample with what every model gives for it, run by the chosen engine."""
    at_once = CHUNK * (worker_count() or 1)
    with contextlib.ExitStack() as stack:
        stack.callback(release_sessions)
        parts, shared = _packed(stack, runs)
        while wave := list(itertools.islice(items, at_once)):
            chunks = [_Chunk(tuple(wave[at : at + CHUNK])) for at in range(0, len(wave), CHUNK)]
            found = distributed_map(_Task(parts), chunks, name="run", shared=shared)
            rows = itertools.chain.from_iterable(found)
            yield from ((feed, row) for (_, feed), row in zip(wave, rows, strict=True))


def _packed(
    stack: contextlib.ExitStack, runs: Sequence[WorkerRun]
) -> tuple[tuple[_Part, ...], dict[str, Array]]:
    """Return the runs without their models, and the files of these."""
    parts, shared = [], dict[str, Array]()
    for number, run in enumerate(runs):
        files = stack.enter_context(packed(with_outputs(run.model, run.names)))
        key = content_key(content_hash(files), run.optimize)
        prefix = f"{number}/"
        shared |= {f"{prefix}{name}": data for name, data in files.items()}
        parts.append(_Part(key, prefix, run.name, run.optimize, run.take))
    return tuple(parts), shared
