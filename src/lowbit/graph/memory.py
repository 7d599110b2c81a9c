"""Memory that was freed, given back to the system.

glibc keeps what threads freed in pools of their own, where the next session does not find it: tens
of megabytes after each, which add up over the stages of a run.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable


def give_back() -> None:
    """Return freed memory to the system, where the C library knows how."""
    _trim()(0)


@functools.cache
def _trim() -> Callable[[int], object]:
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # not glibc; Windows has no nameless library
        return lambda _: None
    return found
