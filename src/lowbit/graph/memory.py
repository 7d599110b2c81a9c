"""Memory: what was freed is released to the system, and garbage collection paused while graphs are built.

glibc keeps what threads freed in pools of their own, where the next session does not find it: tens
of megabytes after each, which add up over the stages of a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable, Iterator


def release_memory() -> None:
    """Return freed memory to the system, where the C library knows how."""
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # not glibc; Windows has no nameless library
        return lambda _: None
    return found


@contextlib.contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """Switch the collector off for a while, unless it is off already.

    Building a graph makes objects by the hundred thousand, all of which stay. The collector would
    go over them again and again: half of the time that a large graph takes.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
