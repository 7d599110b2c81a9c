"""Which part of a graph has to be promoted: the smallest that helps, found by putting parts back.

Everything promoted is good. Whole runs of the graph are put back, the costliest first, as long as
the model stays good; what cannot be put back is halved and tried again. So a front end, a head, a block or
a few of them are found alike, and single tensors of which no one helps by itself do not mislead.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

Region = frozenset[int]
_CHUNKS = 8
_FEW_NODES = 3
_CHEAP, _CHEAP_LOSS_DB, _CLEARLY_DB = 0.01, 1.0, 10.0
"""A hundredth of the model's cost is put back only if that loses little, or if much is left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """A region that was promoted, and how far inside the usable the model then was."""

    region: Region
    margin_db: float


def shrink_region(
    costs: Sequence[float],
    margin: Callable[[Region], float],
    wanted_db: float,
    *,
    effort: int,
) -> list[Trial]:
    """Return ever smaller regions that reach ``wanted_db``, the last the smallest.

    ``costs`` are those of the units of the graph, in its order; all of them together reach it.
    ``effort`` is how many regions are tried, not how long: the same data give the same region.
    """
    whole: Region = frozenset(range(len(costs)))
    found = [Trial(whole, margin(whole))]
    chunks = _split(list(range(len(costs))), _CHUNKS)
    while chunks and effort > 0:
        left = []
        for chunk in sorted(chunks, key=lambda c: -sum(costs[i] for i in c)):
            if effort <= 0:
                return found
            effort -= 1
            region = found[-1].region - frozenset(chunk)
            value = margin(region)
            cost = sum(costs[i] for i in chunk)
            if value >= _needed(wanted_db, found[-1].margin_db, cost):
                found.append(Trial(region, value))
            elif len(chunk) > (1 if cost > _CHEAP else _FEW_NODES):
                left.append(chunk)
        chunks = [half for chunk in sorted(left) for half in _split(chunk, 2)]
    return found


def _needed(wanted_db: float, now_db: float, cost: float) -> float:
    """Return the margin that is needed to put something back: what costs little must not cost much."""
    if cost > _CHEAP:
        return wanted_db
    return max(wanted_db, min(now_db - _CHEAP_LOSS_DB, wanted_db + _CLEARLY_DB))


def _split(items: Sequence[int], parts: int) -> list[list[int]]:
    """Return runs of nearly equal length."""
    parts = min(parts, len(items))
    bounds = [round(i * len(items) / parts) for i in range(parts + 1)] if parts else []
    return [list(items[a:b]) for a, b in itertools.pairwise(bounds)]


def runs_of(region: Region) -> list[list[int]]:
    """Return the units of a region as runs of neighbours."""
    runs: list[list[int]] = []
    for index in sorted(region):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs
