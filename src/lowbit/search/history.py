"""The history of a search: the time that is left, what was tried and what it gave, and why it ended.

Every search keeps one: that for a goal, whose trials each start from the best so far, and searches over
spaces of configurations, whose trials are independent and run by the chosen engine.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from lowbit.report.values import GoalTrial
from lowbit.search.trials import run_trials

S = TypeVar("S")
T = TypeVar("T")

Outcome = Literal["kept", "dropped", "met", "skipped"]

End = Literal["", "met", "budget", "float", "samples"]
"""Why nothing more is tried: the goal is met, the time is up, float is not better, or samples are too few."""


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """How many seconds there are since ``started``; without a limit as many as it takes."""

    seconds: float | None = None
    started: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that are left."""
        if self.seconds is None:
            return float("inf")
        return self.seconds - (time.monotonic() - self.started)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of the history, begun at ``start``; see ``GoalTrial``."""

    strategy: str
    what: str
    start: float
    value: float | None = None
    margin_db: float | None = None
    outcome: Outcome = "skipped"
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Rating:
    """How good a result is: its figure, the lower ``rank`` the better; nothing where there is none."""

    value: float | None
    rank: float = 0.0
    note: str = ""


class SearchHistory:
    """The history of one search, and whether it may go on."""

    def __init__(
        self, budget: Budget | None = None, tell: Callable[[int], None] = lambda tried: None
    ) -> None:
        """Begin with nothing tried; ``tell`` is told how many rows there are."""
        self.budget, self.rows = budget or Budget(), list[GoalTrial]()
        self.end: End = ""
        self.ran_out = False
        self._tell, self._best = tell, float("inf")

    def has_time(self, strategy: str, what: str, expected: float = 0.0) -> bool:
        """Whether there is time for a trial that is expected to take so long; if not, a row says so."""
        left = self.budget.left
        if left > expected:
            return True
        note = f"would take about {expected:.0f} s, and {left:.0f} s are left"
        if left <= 0:
            self.end, note = "budget", "the budget is spent"
        self.ran_out = True
        self.record(Row(strategy, what, time.monotonic(), note=note))
        return False

    def record(self, row: Row) -> None:
        """Add a row."""
        self.rows.append(
            GoalTrial(
                strategy=row.strategy,
                what=row.what,
                value=row.value,
                margin_db=row.margin_db,
                seconds=time.monotonic() - row.start,
                outcome=row.outcome,
                note=row.note,
            )
        )
        self._tell(len(self.rows))

    def run(
        self,
        strategy: str,
        task: Callable[[S], T],
        items: Sequence[S],
        rate: Callable[[T], Rating],
        *,
        is_enough: Callable[[Sequence[T]], bool] = lambda found: False,
        threads: int = 1,
    ) -> list[T]:
        """Return the results of independent trials, in order, until they are enough or the time is up."""
        start, left = time.monotonic(), self.budget.left

        def arrived(found: Sequence[T]) -> bool:
            nonlocal start
            enough = is_enough(found)
            what = str(items[len(found) - 1])
            self.record(self._row(strategy, what, start, rate(found[-1]), enough=enough))
            start = time.monotonic()
            self.end = "met" if enough else self.end
            return enough

        seconds = None if left == float("inf") else max(left, 0.0)
        found = run_trials(
            task, items, name=strategy, is_enough=arrived, seconds=seconds, threads=threads
        )
        if len(found) < len(items) and self.end != "met":
            self.end, self.ran_out = "budget", True
        return found

    def _row(self, strategy: str, what: str, start: float, rating: Rating, *, enough: bool) -> Row:
        if rating.value is None:
            return Row(strategy, what, start, note=rating.note)
        is_best = rating.rank < self._best
        self._best = min(self._best, rating.rank)
        outcome: Outcome = "met" if enough else "kept" if is_best else "dropped"
        return Row(strategy, what, start, rating.value, None, outcome, rating.note)
