"""Running independent work in threads: results in order, in bounded memory.

NumPy and onnxruntime release the interpreter's lock, so threads of one process share models and
arrays without copying them.
"""

from __future__ import annotations

import collections
import concurrent.futures
import os
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def cpu_count() -> int:
    """Return how many processors there are to share work among."""
    return os.cpu_count() or 1


def ordered_map(
    work: Callable[[S], T], items: Iterable[S], threads: int | None = None
) -> Generator[T, None, None]:
    """Yield ``work(item)`` in order, with at most ``threads`` running and one more item read.

    A caller who stops early does not wait for results nobody will see.
    """
    threads = cpu_count() if threads is None else threads
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    pending = collections.deque[concurrent.futures.Future[T]]()
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
