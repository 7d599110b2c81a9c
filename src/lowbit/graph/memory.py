"""Memory: what was freed is released to the system, and garbage collection paused while graphs are built.

glibc keeps what threads freed in pools of their own, where the next session does not find it: tens
of megabytes after each, which add up over the stages of a run. So threads share a few pools.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import mmap
import pathlib
from collections.abc import Callable, Iterator

from lowbit.parallel import cpu_count

_WORTH_IT = 64 << 20
"""Bytes by which a process must have grown or shrunk for its memory to be gone through again.

What is released, the system zeroes when it is asked for again: sessions of one model after another take as much
each, and would wait for it.
"""

_MOST_POOLS, _THREADS_OF_A_POOL = -8, 4
"""The number by which ``mallopt`` knows how many pools there may be, and the threads that share one."""


@functools.cache
def share_pools() -> None:
    """Make threads that start from now on share pools of memory, where the C library knows how."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc, as below
        pools = max(1, cpu_count() // _THREADS_OF_A_POOL)
        ctypes.CDLL(None).mallopt(_MOST_POOLS, pools)


def release_memory() -> None:
    """Return freed memory to the system, where the C library knows how.

    It goes through all that is free, which takes long where much is. Where hardly anything was taken
    or given back since the last time there is hardly anything new to return.
    """
    _releaser().release()


class _Releaser:
    """Releases memory, and knows how much the process had after that and when it was last asked."""

    def __init__(self, trim: Callable[[int], object]) -> None:
        self._trim, self._after, self._seen = trim, 0, 0

    def release(self) -> None:
        """Return freed memory to the system if much has changed since the last time."""
        now = resident_bytes()
        steady = now is not None and abs(now - self._seen) <= _WORTH_IT
        if now is None or not steady or now > self._after + _WORTH_IT:
            self._trim(0)
            self._after = now = resident_bytes() or 0
        self._after, self._seen = min(self._after, now), now


class GrownMemory:
    """Releases memory once the process has grown by much, for what frees and takes it by turns.

    What is released is zeroed by the system when it is asked for again: a fifth of the time that small
    layers take.
    """

    def __init__(self, room: int = 32 << 20) -> None:
        """Begin with the memory that the process has; ``room`` bytes more may stay."""
        self._room, self._least = room, resident_bytes()

    def release(self) -> None:
        """Return freed memory to the system if the process has grown, or if that is not known."""
        now = resident_bytes()
        if now is None or self._least is None or now > self._least + self._room:
            release_memory()
            now = resident_bytes()
        self._least = None if now is None or self._least is None else min(self._least, now)


def resident_bytes() -> int | None:
    """Return how much memory this process has, where the system says it."""
    try:
        pages = pathlib.Path("/proc/self/statm").read_bytes().split()[1]
        return int(pages) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):  # not Linux
        return None


@functools.cache
def _releaser() -> _Releaser:
    try:
        return _Releaser(ctypes.CDLL(None).malloc_trim)
    except (OSError, AttributeError, TypeError):  # not glibc; Windows has no nameless library
        return _Releaser(lambda _: None)


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
