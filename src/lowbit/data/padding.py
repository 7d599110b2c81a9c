"""Sequences of a padded batch one by one, without their padding.

What a network computes at masked positions reaches no output, but it would count in every statistic, in
what layers are refined on and in what outputs are compared at. Where a model takes batches and sequences of
any size, each sequence is a sample of its own and is as long as its mask says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.dataset import Source
from lowbit.data.inputs import InputInfo, Sample, conform
from lowbit.data.text import has_role


class UnpaddedSource(Source):
    """The sequences of another source's feeds."""

    def __init__(self, source: Source, inputs: Sequence[InputInfo], limit: int | None) -> None:
        """Take a source whose feeds have a mask (``find_mask``)."""
        self._source, self._inputs, self._limit = source, tuple(inputs), limit
        self._mask = find_mask(inputs)

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield each sequence."""
        return islice(self._sequences(), self._limit)

    def _sequences(self) -> Iterator[tuple[str, object]]:
        for label, raw in self._source:
            parts = list(unpadded(conform(raw, self._inputs, label), self._mask))
            for index, part in enumerate(parts):
                yield (label if len(parts) == 1 else f"{label}, sequence {index}"), part

    def count(self) -> None:
        """Return nothing: the number of sequences is known only after reading."""

    def describe(self) -> str:
        """Return where the batches come from."""
        return f"{self._source.describe()}, without padding"


def find_mask(inputs: Sequence[InputInfo]) -> str:
    """Return the input that says which tokens are padding; nothing unless all sizes are free."""
    if any(info.shape is None or len(info.shape) < 2 for info in inputs):
        return ""
    masks = [info for info in inputs if has_role(info, "mask")]
    if len(masks) != 1 or len(masks[0].shape or ()) != 2:
        return ""
    sequences = [info.shape for info in inputs if info.shape is not None and len(info.shape) == 2]
    free = all(not isinstance(size, int) for shape in sequences for size in shape)
    return masks[0].name if free else ""


def unpadded(feed: Sample, mask: str) -> Iterator[Sample]:
    """Yield the sequences of a batch that has padding; the feed itself if it has none.

    Inputs other than one number a token must be caches, and empty.
    """
    kept = feed[mask] != 0
    others = [array for array in feed.values() if array.shape != kept.shape]
    known = all(array.size == 0 and len(array) == len(kept) for array in others)
    if kept.all() or not known or not kept.any(axis=1).all():
        yield feed
        return
    for row in range(len(kept)):
        yield {name: _row(array, row, kept) for name, array in feed.items()}


def _row(array: NDArray[Any], row: int, kept: NDArray[np.bool_]) -> NDArray[Any]:
    part = array[row : row + 1]
    return part[:, kept[row]] if array.shape == kept.shape else part
