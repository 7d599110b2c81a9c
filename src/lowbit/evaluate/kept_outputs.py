"""Take from a session what is kept of the tensors of a sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import numpy as np

from lowbit.evaluate.kept_arrays import ArrayKeeper, KeptArrays
from lowbit.evaluate.same_outputs import arrays_of
from lowbit.graph.openvino import OpenVinoSession
from lowbit.graph.session import Array, Feed, Session

Keep: TypeAlias = Callable[[str, Array], Array]


@dataclasses.dataclass(frozen=True, slots=True)
class KeptOutputs:
    """Runs a model on samples and keeps what ``keep`` returns of each tensor.

    The arrays of a sequence are ``name[0]``, ``name[1]`` and so on.
    """

    names: tuple[str, ...]
    samples: frozenset[int] | None
    keep: Keep

    def __call__(
        self, running: Session | OpenVinoSession, index: int, feed: Feed
    ) -> Mapping[str, Array] | None:
        """Return it for one sample, or ``None`` if the model is not run on it."""
        if not self._takes(index):
            return None
        # Copied: an array of onnxruntime's keeps all memory of its session.
        return {part: np.array(array) for part, array in self._values(running, feed)}

    def into(
        self, keeper: ArrayKeeper, running: Session | OpenVinoSession, index: int, feed: Feed
    ) -> KeptArrays | None:
        """Put the same into a keeper: of many tensors, copies that wait for it would double the memory."""
        return keeper.kept(dict(self._values(running, feed))) if self._takes(index) else None

    def _takes(self, index: int) -> bool:
        return self.samples is None or index in self.samples

    def _values(
        self, running: Session | OpenVinoSession, feed: Feed
    ) -> Iterator[tuple[str, Array]]:
        for name, value in zip(self.names, running.run(self.names, feed), strict=True):
            for part, array in arrays_of(name, value):
                yield part, self.keep(name, array)
