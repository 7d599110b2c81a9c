"""How many threads NumPy's matrix products have."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Compute matrix products on one thread.

    Sums that more threads make may round otherwise, so results would depend on the number of processors. And
    threads that wait for the next product take a processor from other work for a while.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _libraries() -> ThreadpoolController:
    """Return the libraries with threads: to look for them takes longer than to solve a small layer."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
