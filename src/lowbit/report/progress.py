"""The stage a run is in, on a terminal; nothing when stderr is piped."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from lowbit.report.tables import stderr

Report: TypeAlias = Callable[[str, int, int | None], None]
"""Told the stage, how much of it is done, and how much there is (if known)."""


@contextlib.contextmanager
def show_stages(*, quiet: bool, console: Console | None = None) -> Iterator[Report]:
    """Yield a function to be told about progress; it shows a bar unless quiet or piped."""
    if quiet or (console is None and not sys.stderr.isatty()):
        yield lambda stage, done, total: None
        return
    columns = (
        SpinnerColumn("line"),
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console or stderr(), transient=True) as bar:
        task = bar.add_task("start", total=None)

        def tell(stage: str, done: int, total: int | None) -> None:
            bar.update(task, description=stage, completed=done, total=total)

        yield tell
