"""Samples that are run several times: in memory while they are small, in a file beyond that.

Some megabytes each, with what the float model gives for them, they would fill memory: more of them
validate where there are more to calibrate on.
"""

from __future__ import annotations

from collections.abc import Iterable

from lowbit.evaluate.kept_arrays import ArrayKeeper
from lowbit.evaluate.runner import ReferenceSample

_ROOM = 2 << 20


def kept_samples(samples: Iterable[ReferenceSample], room: int = _ROOM) -> list[ReferenceSample]:
    """Return the same samples, of which ``room`` bytes stay in memory."""
    keeper = ArrayKeeper(room)
    return [ReferenceSample(keeper.kept(s.feed), keeper.kept(s.outputs)) for s in samples]
