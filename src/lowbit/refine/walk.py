"""The walk along the modules.

Float and quantized values flow forward, each module is solved where they meet, and what comes
after it sees the solved one.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from lowbit.graph.memory import release_memory
from lowbit.graph.session import Array, Feed
from lowbit.parallel import ordered_map
from lowbit.refine.flow import Flow
from lowbit.refine.goals import Goals
from lowbit.refine.modules import Draft, Module, Outcome, settled_bias
from lowbit.refine.sights import SeenSight, Sight, StoredSight, see
from lowbit.refine.store import DiskStore

Feeds = Callable[[], Iterable[Feed]]
Solve = Callable[[Module, Sequence[Sight]], Outcome]


class Listener(Protocol):
    """Is told of every module, and may change what becomes of it."""

    def solved(self, index: int, module: Module, outcome: Outcome) -> Outcome:
        """Return the outcome to go on with."""


@dataclasses.dataclass(slots=True)
class Walk:
    """One walk over all modules of a draft, for all samples of the data.

    ``done`` are the outcomes of the first modules, known from before. ``stored`` keeps sights in
    files. ``alone``: each module is solved as if no other were, several at a time.
    """

    draft: Draft
    modules: Sequence[Module]
    feeds: Feeds
    goals: Goals
    quantized: Flow
    done: Sequence[Outcome] = ()
    stored: DiskStore | None = None
    alone: bool = False
    _count: int = 0

    def run(self, solve: Solve, listener: Listener) -> Iterator[Outcome]:
        """Solve every module that is left, in turn, and yield its outcome."""
        constants: dict[str, Array] = {}
        for module, outcome in zip(self.modules, self.done, strict=False):
            constants |= replaced_constants(self.draft, module, outcome)
        rest = list(enumerate(self.modules))[len(self.done) :]
        if self.alone:
            yield from self._run_alone(rest, solve, listener)
            return
        for step, (index, module) in enumerate(rest):
            sights = self._look(step, module, constants)
            outcome = listener.solved(index, module, _solved(solve, module, sights))
            del sights  # before the next are taken, in which this memory serves
            release_memory()
            constants |= replaced_constants(self.draft, module, outcome)
            yield outcome

    def _run_alone(
        self, rest: Sequence[tuple[int, Module]], solve: Solve, listener: Listener
    ) -> Iterator[Outcome]:
        threads = os.cpu_count() or 1
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            pending: list[tuple[int, Module, concurrent.futures.Future[Outcome]]] = []

            def first() -> Outcome:
                index, module, future = pending.pop(0)
                return listener.solved(index, module, future.result())

            for step, (index, module) in enumerate(rest):
                sights = self._look(step, module, {})
                pending.append((index, module, pool.submit(_solved, solve, module, sights)))
                if len(pending) > threads:
                    yield first()
            while pending:
                yield first()

    def _look(self, step: int, module: Module, constants: Mapping[str, Array]) -> list[Sight]:
        self.quantized.begin(step, constants)
        self.goals.begin(step)

        def work(item: tuple[int, Feed | None]) -> Sight:
            sample, feed = item
            goal = self.goals.of(step, sample, feed)
            x = self.quantized.run(sample, feed)[module.source.name]
            sight: SeenSight = see(module.layer, module.source.floats(x), goal)
            return (
                sight
                if self.stored is None
                else StoredSight(self.stored, module.node, sample, sight)
            )

        return list(ordered_map(work, self._samples(step), os.cpu_count() or 1))

    def _samples(self, step: int) -> Iterator[tuple[int, Feed | None]]:
        if step == 0:
            self._count = 0
            for sample, feed in enumerate(self.feeds()):
                self._count = sample + 1
                yield sample, feed
        else:
            yield from ((sample, None) for sample in range(self._count))


def _solved(solve: Solve, module: Module, sights: Sequence[Sight]) -> Outcome:
    outcome = solve(module, sights)
    for sight in sights:
        if isinstance(sight, StoredSight):
            sight.drop()
    return outcome


def replaced_constants(draft: Draft, module: Module, outcome: Outcome) -> dict[str, Array]:
    """Return the values that a solved module's node reads from now on."""
    values: dict[str, Array] = {module.weight_value: module.values(outcome.codes)}
    if module.bias_value is not None and outcome.bias is not None:
        values[module.bias_value] = settled_bias(draft, module, outcome.bias)
    return values


def batched(feeds: Feeds, size: int) -> Iterator[Feed]:
    """Yield feeds of ``size`` samples each, one after another along the first axis."""
    group: list[Feed] = []
    for feed in feeds():
        group.append(feed)
        if len(group) == size:
            yield _joined(group)
            group = []
    if group:
        yield _joined(group)


def _joined(group: Sequence[Feed]) -> Feed:
    return {name: np.concatenate([feed[name] for feed in group]) for name in group[0]}
