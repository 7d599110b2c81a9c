"""Python's cyclic garbage collector, out of the way while a graph is built."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def not_collecting() -> Iterator[None]:
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
