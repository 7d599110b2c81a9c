"""Independent trials of a search: run by the chosen engine, until enough is found or the time is up."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from lowbit.parallel import Shared, distributed_map

S = TypeVar("S")
T = TypeVar("T")


def run_trials(
    task: Callable[..., T],
    items: Sequence[S],
    *,
    name: str,
    is_enough: Callable[[Sequence[T]], bool] = lambda found: False,
    seconds: float | None = None,
    threads: int = 1,
    shared: Shared | None = None,
) -> list[T]:
    """Return the results of the trials that were run, in the order of ``items``.

    Results come in order whatever worker is first, so the same trials are the last for any number of
    workers; only ``seconds`` makes it depend on time. ``threads`` run at once where no engine is chosen.
    With ``shared`` arrays the task is called as ``task(item, shared)``.
    """
    start = time.monotonic()
    found: list[T] = []
    running = distributed_map(task, items, name=name, shared=shared, threads=threads)
    with contextlib.closing(running) as results:
        for result in results:
            found.append(result)
            spent = time.monotonic() - start
            if is_enough(found) or (seconds is not None and spent >= seconds):
                break
    return found
