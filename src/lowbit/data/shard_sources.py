"""Samples from descriptions: shards of records, files at URLs, and functions that make samples."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lowbit.data.dataset import Renumbered, Source
from lowbit.data.inputs import InputInfo, separated
from lowbit.data.preprocessing import Preprocessing
from lowbit.data.records import Record, RecordSource, read_records
from lowbit.data.remote import read_bytes
from lowbit.data.sources import iterated
from lowbit.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True, slots=True)
class UrlRecord:
    """One file at a URL; its only field is what its extension says."""

    url: str
    name: str

    @property
    def fields(self) -> Sequence[str]:
        """The extension."""
        return (self.name.rsplit(".", 1)[-1].lower(),)

    def load(self, field: str) -> bytes:
        """Return the file."""
        del field
        return read_bytes(self.url)


def open_records(
    records: Sequence[Record],
    inputs: Sequence[InputInfo],
    preprocessing: Preprocessing | None,
    limit: int | None,
    origin: str,
) -> Source:
    """Return records as feeds: images if they hold any, arrays otherwise."""
    from lowbit.data.image_sources import image_field, open_image_records

    if image_field(records[0]) is not None:
        # Pillow is heavy, and most who import this package have no images.
        from lowbit.data.images import plan_images

        plan = plan_images(inputs, preprocessing or Preprocessing())
        return open_image_records(records, plan, limit, origin)
    if preprocessing is not None:
        raise ConfigError(
            f"a preprocessing is given, but records of {origin} hold no images "
            f"(their fields: {', '.join(records[0].fields)}); do not give it"
        )
    return RecordSource(records[:limit], inputs, origin)


def open_shards(
    names: Sequence[str],
    inputs: Sequence[InputInfo],
    preprocessing: Preprocessing | None,
    limit: int | None,
) -> Source:
    """Return the samples of WebDataset or Parquet shards."""
    origin = names[0] if len(names) == 1 else f"{len(names)} shards from {names[0]} on"
    return open_records(read_records(names), inputs, preprocessing, limit, origin)


class FactorySource(Source):
    """Samples of a function that makes them: workers call it by themselves, so it must be the same there.

    What it returns is gone through, or asked by number where it can be.
    """

    def __init__(
        self, factory: Callable[[], Any], inputs: Sequence[InputInfo], limit: int | None
    ) -> None:
        """Take a function without arguments."""
        self._factory, self._inputs, self._limit = factory, tuple(inputs), limit
        self._name = getattr(factory, "__name__", type(factory).__name__)

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield the samples of a new call."""
        made = self._factory()
        each = (part for item in iterated(made) for part in separated(item, self._inputs))
        index = -1
        for index, item in enumerate(itertools.islice(each, self._limit)):
            yield f"sample {index}", item
        if index < 0:
            raise DataError(f"{self._name}() gave no sample: return at least one")

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the samples of these numbers; a sequence is asked for these alone."""
        made = self._factory()
        if (
            hasattr(made, "__getitem__")
            and hasattr(made, "__len__")
            and not self._has_batches(made)
        ):
            return ((f"sample {index}", made[index]) for index in indices)
        return super().read(indices)

    def _has_batches(self, made: Any) -> bool:
        return (
            len(made) > 0 and len(list(itertools.islice(separated(made[0], self._inputs), 2))) > 1
        )

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the function and the numbers: the samples are made where they are needed."""
        return Renumbered(self, tuple(indices))

    def count(self) -> int | None:
        """Return the number of samples, if what is made knows it."""
        made = self._factory()
        if not hasattr(made, "__len__") or (
            hasattr(made, "__getitem__") and self._has_batches(made)
        ):
            return None
        return len(made) if self._limit is None else min(len(made), self._limit)

    def describe(self) -> str:
        """Return which function makes them."""
        return f"samples made by {self._name}()"
