"""Seconds by stage, and the caller's progress."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator

Progress = Callable[[str, int, int | None], None]
"""Told the stage, how much of it is done, and how much there is (if known)."""


@dataclasses.dataclass(slots=True)
class Clock:
    """What each stage took; a stage inside a charged stretch counts towards that stretch."""

    progress: Progress
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    _charged: str | None = None

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage."""
        if self._charged is not None:
            yield
            return
        self.progress(name, 0, None)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    @contextlib.contextmanager
    def charge(self, name: str) -> Iterator[None]:
        """Time a stretch as one stage, whatever stages are gone through in it."""
        with self.stage(name):
            self._charged = name
            try:
                yield
            finally:
                self._charged = None

    def tell(self, name: str, done: int, total: int | None) -> None:
        """Tell the caller how far the running stage is."""
        self.progress(self._charged or name, done, total)
