"""One line of progress over a whole run, with the time that is left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lowbit.report.tables import stderr

Tell: TypeAlias = Callable[[str, int, int | None], None]
"""A progress callback: the stage, how much of it is done, and the total if known."""

# How the stages of a run divide its time: measured on MobileNetV2, YOLOv8n and MiniLM with A8W8 and
# rounded. Only the order and the proportions matter: the pace is taken from the run itself.
TYPICAL: Mapping[str, float] = MappingProxyType(
    {
        "load": 1,
        "normalize": 1,
        "transform": 4,
        "prepare": 1,
        "plan": 1,
        "calibrate": 12,
        "solve": 4,
        "emit": 1,
        "validate": 5,
        "sensitivity": 5,
        "search": 60,
        "refine": 60,
        "verify": 6,
        "promote": 20,
        "compare": 8,
        "analyze": 25,
        "save": 1,
    }
)


class Estimate:
    """How far a run is, and how long the rest will take at the pace it has had so far.

    A stage that comes again (a candidate with one more step) never takes the estimate back.
    """

    def __init__(
        self, stages: Iterable[str] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        """Take the stages that are expected, in any order; others are added when they come."""
        self._shares = {name: share for name, share in TYPICAL.items() if name in set(stages)}
        self._now = now
        self._start = self._began = now()
        self._furthest = ""
        self._stage = ""
        self._done = 0
        self.part = 0.0

    def tell(self, stage: str, done: int, total: int | None) -> None:
        """Take note of where the run is."""
        if stage != self._stage:
            self._began, self._stage = self._now(), stage
        self._done = done
        self._shares.setdefault(stage, TYPICAL.get(stage, 1.0))
        order = list(self._shares)
        if not self._furthest or order.index(stage) > order.index(self._furthest):
            self._furthest, self.part = stage, 0.0
        if stage == self._furthest and total:
            self.part = max(self.part, min(done / total, 1.0))

    @property
    def fraction(self) -> float:
        """The share of the run that is done."""
        if not self._furthest:
            return 0.0
        order = list(self._shares)
        before = sum(self._shares[name] for name in order[: order.index(self._furthest)])
        return (before + self.part * self._shares[self._furthest]) / sum(self._shares.values())

    @property
    def rate(self) -> float | None:
        """How many parts of the running stage are done in a second."""
        elapsed = self._now() - self._began
        return self._done / elapsed if self._done and elapsed else None

    @property
    def remaining(self) -> float | None:
        """The seconds that are left, as far as can be told; ``None`` before there is any pace."""
        elapsed, fraction = self._now() - self._start, self.fraction
        if not fraction or not elapsed:
            return None
        whole, own = sum(self._shares.values()), self._shares[self._furthest]
        rest = (1 - fraction) * elapsed / fraction
        if self._stage != self._furthest or not self.part:
            return rest
        # The pace of the running stage is known better than that of all.
        stage_left = (1 - self.part) * own / whole * elapsed / fraction
        measured = (self._now() - self._began) * (1 - self.part) / self.part
        return rest - stage_left + measured


@contextlib.contextmanager
def show_stages(
    *, quiet: bool, console: Console | None = None, stages: Iterable[str] = ()
) -> Iterator[Tell]:
    """Yield a progress callback; it shows one line unless quiet or piped."""
    if quiet or (console is None and not sys.stderr.isatty()):
        yield lambda stage, done, total: None
        return
    columns = (
        SpinnerColumn("line"),
        TextColumn("{task.description:<10}"),
        BarColumn(),
        TextColumn("{task.fields[count]:>9}"),
        TextColumn("{task.fields[rate]:>8}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]:<18}"),
    )
    estimate = Estimate(stages)
    with Progress(*columns, console=console or stderr(), transient=True) as bar:
        task = bar.add_task("start", total=1.0, count="", rate="", left="")

        def tell(stage: str, done: int, total: int | None) -> None:
            estimate.tell(stage, done, total)
            bar.update(
                task,
                description=stage,
                completed=estimate.fraction,
                count=f"{done}/{total}" if total else "",
                rate="" if estimate.rate is None else f"{estimate.rate:.3g}/s",
                left=describe_remaining(estimate.remaining),
            )

        yield tell


def describe_remaining(left: float | None) -> str:
    """Return ``about 2 min left``: an estimate needs no more digits."""
    if left is None:
        return ""
    if left < 90:
        return f"about {max(5, 5 * round(left / 5))} s left"
    return f"about {round(left / 60)} min left"
