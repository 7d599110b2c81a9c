"""The vocabulary of calibration data: what an input wants, one feed, a set of feeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Sample: TypeAlias = Mapping[str, NDArray[Any]]
"""One feed: input name to array, with the batch dimension the model wants."""


@dataclass(frozen=True, slots=True)
class InputInfo:
    """What one model input wants.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        shape: Fixed sizes as numbers, free ones as their name or ``None``; ``None`` for the whole
            shape when not even the rank is known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...] | None

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers of any width."""
        # ml_dtypes' narrow floats have kind "V", so the kind alone does not tell.
        return "float" in self.dtype.name

    @property
    def shape_text(self) -> str:
        """The shape as it is shown to people, ``?`` for a nameless free size."""
        if self.shape is None:
            return "[any shape]"
        return "[" + ", ".join("?" if size is None else str(size) for size in self.shape) + "]"


class Data(ABC):
    """Feeds that can be gone through any number of times, always the same, in flat memory."""

    @abstractmethod
    def __iter__(self) -> Iterator[Sample]:
        """Yield the feeds, each checked against the model's inputs."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of feeds; a source that cannot tell is read once to count them."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Where the feeds come from and what was done to them, for a report."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the samples are called, such as their files; nothing where they have no names."""
        return ()

    @property
    @abstractmethod
    def is_random(self) -> bool:
        """Whether the values are made up, so that no accuracy figure follows from them."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return 16 hex digits that depend on the name, type, shape and bytes of every feed."""


class Source(Protocol):
    """Where feeds come from, before they are checked."""

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield what a feed is called in messages, and the feed as it came."""

    def count(self) -> int | None:
        """Return the number of feeds, or ``None`` when only reading them can tell."""

    def describe(self) -> str:
        """Return where the feeds come from, for a report."""
