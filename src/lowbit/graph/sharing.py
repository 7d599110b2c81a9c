"""How processors are shared among samples: one each, or several for a sample that takes much memory.

A sample a thread scales better than threads inside an operator. But every sample that runs at once
holds feature maps of its own, and those of a large image take hundreds of megabytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from lowbit.graph.session import Feed, Optimize
from lowbit.parallel import cpu_count

# Inputs of a sample above which it runs by itself, in bytes: an image of 300 x 300 in floats.
_LARGE = 1 << 20
# Threads of a large sample: as many on every machine and in every worker, because onnxruntime's sums
# differ in the last bit with their number.
_THREADS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Sharing:
    """Whether samples run one by one, each on several threads, or as many at once as processors."""

    one_by_one: bool

    @property
    def samples(self) -> int:
        """How many samples run at once."""
        return max(1, cpu_count() // self.threads)

    @property
    def threads(self) -> int:
        """How many threads each has."""
        return _THREADS if self.one_by_one else 1

    def lean(self, optimize: Optimize) -> Optimize:
        """Return how a graph is optimized of which many values are looked at."""
        return "plain" if self.one_by_one and optimize == "all" else optimize


SIDE_BY_SIDE, ONE_BY_ONE = Sharing(one_by_one=False), Sharing(one_by_one=True)


def sharing_of(feed: Feed | None) -> Sharing:
    """Return how samples like this one share the processors."""
    size = sum(np.asarray(value).nbytes for value in (feed or {}).values())
    return Sharing(one_by_one=size > _LARGE)
