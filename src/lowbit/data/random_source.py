"""Samples of random numbers, for trying a model out: no accuracy figure follows from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.dataset import IndexedSource, Renumbered, Source
from lowbit.data.inputs import InputInfo
from lowbit.errors import DataError

DEFAULT_COUNT = 8


class RandomSource(IndexedSource):
    """Uniform numbers of [0, 1) for float inputs, 0 or 1 for all others."""

    def __init__(self, inputs: Sequence[InputInfo], *, limit: int | None, seed: int) -> None:
        """Find the shapes; what the same seed gives is always the same."""
        self._shapes = [(info, _shape(info)) for info in inputs]
        self._count = DEFAULT_COUNT if limit is None else limit
        self._seed = seed

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers; each has a generator of its own, so all are the same."""
        for index in indices:
            generator = np.random.default_rng((self._seed, index))
            yield (
                f"random sample {index}",
                {info.name: _draw(generator, info, shape) for info, shape in self._shapes},
            )

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the numbers of the feeds: each is made from its own."""
        return Renumbered(self, tuple(indices))

    def count(self) -> int:
        """Return the number of feeds."""
        return self._count

    def describe(self) -> str:
        """Say that the data is random."""
        return f"{self._count} samples of random numbers (seed {self._seed}; not real data)"


def _shape(info: InputInfo) -> tuple[int, ...]:
    if info.is_text:
        raise DataError(
            f"input {info.name!r} takes strings, which cannot be generated: give real samples, "
            "or remove the text processing from the model"
        )
    if info.shape is None:
        raise DataError(
            f"random data needs the shape of input {info.name!r}, which is not known: give real "
            "samples"
        )
    sizes = list(info.shape)
    if sizes and not isinstance(sizes[0], int):
        sizes[0] = 1
    free = [
        f"axis {axis} ({size or 'nameless'})"
        for axis, size in enumerate(sizes)
        if not isinstance(size, int)
    ]
    if free:
        raise DataError(
            f"random data needs fixed sizes, input {info.name!r} of shape {info.shape_text} "
            f"leaves open {', '.join(free)}: fix them (--input-shape), or give real samples"
        )
    return tuple(size for size in sizes if isinstance(size, int))


def _draw(generator: np.random.Generator, info: InputInfo, shape: tuple[int, ...]) -> NDArray[Any]:
    if info.is_float:
        return generator.random(shape, dtype=np.float32)
    return generator.integers(0, 2, size=shape).astype(info.dtype)
