"""Images as a source of samples: from a folder, or from rows of pixels.

Decoding runs a few images ahead in threads, in order and in bounded memory.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lowbit.data.arrays import Table
from lowbit.data.dataset import IndexedSource, Source
from lowbit.data.images import ImagePlan, render_bytes, render_file, render_pixels
from lowbit.data.kept_images import Images, KeptImages
from lowbit.data.records import Record
from lowbit.errors import DataError
from lowbit.numerics.spacing import evenly_spaced
from lowbit.parallel import cpu_count, ordered_map

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Images in files."""

    paths: Sequence[Path]
    plan: ImagePlan

    def load(self, index: int) -> NDArray[Any]:
        """Return an image as the values of the input."""
        return render_file(self.paths[index], self.plan)

    def digest(self, index: int) -> bytes:
        """Return a hash of the file and of what is done to it."""
        try:
            content = self.paths[index].read_bytes()
        except OSError as error:
            raise DataError(
                f"image {self.paths[index]} cannot be read: {error.strerror or error}"
            ) from error
        return hashlib.sha256(repr(self.plan).encode() + content).digest()

    def some(self, indices: Sequence[int]) -> ImageFiles:
        """Return the files of these numbers."""
        return ImageFiles(tuple(self.paths[index].absolute() for index in indices), self.plan)


@dataclass(frozen=True, slots=True)
class ImageRows:
    """Images that are rows of an array."""

    table: Table
    plan: ImagePlan
    rows: Sequence[int]

    def load(self, index: int) -> NDArray[Any]:
        """Return an image as the values of the input."""
        # Through the table, which keeps the rows' file alive.
        row = self.rows[index]
        array = self.table.arrays[self.plan.info.name]
        return render_pixels(array[row], self.plan, f"row {row} of {self.table.origin}")

    def digest(self, index: int) -> None:
        """Return nothing: rows are quickly read."""

    def some(self, indices: Sequence[int]) -> ImageRows | None:
        """Return the rows of these numbers if they are of a file."""
        if self.table.file is None:
            return None
        return ImageRows(self.table, self.plan, tuple(self.rows[index] for index in indices))


@dataclass(frozen=True, slots=True)
class ImageRecords:
    """Images that are fields of records in shards, or files at a URL."""

    records: Sequence[Record]
    plan: ImagePlan

    def load(self, index: int) -> NDArray[Any]:
        """Return an image as the values of the input."""
        record = self.records[index]
        return render_bytes(self._bytes(record), self.plan, f"image {record.name}")

    def digest(self, index: int) -> bytes:
        """Return a hash of the image's file and of what is done to it."""
        content = self._bytes(self.records[index])
        return hashlib.sha256(repr(self.plan).encode() + content).digest()

    def some(self, indices: Sequence[int]) -> ImageRecords:
        """Return where the images of these numbers are."""
        return ImageRecords(tuple(self.records[index] for index in indices), self.plan)

    def _bytes(self, record: Record) -> bytes:
        field = image_field(record)
        value = None if field is None else record.load(field)
        if not isinstance(value, bytes):
            raise DataError(f"record {record.name} has no image (its fields: {record.fields})")
        return value


_IMAGE_FIELDS = ("jpg", "jpeg", "png", "bmp", "webp", "image", "img")


def image_field(record: Record) -> str | None:
    """Return the field of a record that holds an image, if any does by its name."""
    return next((f for f in record.fields if f.lower().split(".")[-1] in _IMAGE_FIELDS), None)


def open_image_records(
    records: Sequence[Record], plan: ImagePlan, limit: int | None, origin: str
) -> ImageSource:
    """Return the images of records; a limit takes them evenly spaced."""
    chosen = _spaced(records, None if limit is None else limit * plan.batch)
    return ImageSource(
        plan=plan,
        labels=[f"image {record.name}" for record in chosen],
        names=[record.name for record in chosen],
        images=KeptImages(ImageRecords(chosen, plan)),
        origin=f"images from {origin}",
    )


def _spaced(items: Sequence[T], wanted: int | None) -> Sequence[T]:
    if wanted is None or wanted >= len(items):
        return items
    return [items[index] for index in evenly_spaced(len(items), wanted)]


AHEAD = 4
"""Images that are decoded before they are asked for."""


class ImageSource(IndexedSource):
    """Images by number, made into feeds of as many as the model takes at a time."""

    def __init__(
        self,
        *,
        plan: ImagePlan,
        labels: Sequence[str],
        images: Images,
        origin: str,
        names: Sequence[str] = (),
    ) -> None:
        """Take images, what each is called, and where all of them are from.

        ``names`` are the images' files, where they are files.
        """
        self.names = tuple(names) if plan.batch == 1 else ()
        self._plan = plan
        self._labels = labels
        self._images = images
        self._origin = origin
        if len(labels) < plan.batch:
            raise DataError(
                f"{origin}: {len(labels)} images, but the model fixes the batch at "
                f"{plan.batch}: give at least as many"
            )

    def read(self, indices: Sequence[int]) -> Iterator[tuple[str, object]]:
        """Yield the feeds of these numbers, a few images of them decoded ahead."""
        batch, wanted = self._plan.batch, self._numbers(indices)
        with closing(ordered_map(self._images.load, wanted, min(AHEAD, cpu_count()))) as images:
            for start in (index * batch for index in indices):
                label = self._labels[start]
                if batch > 1:
                    label += f" to {self._labels[start + batch - 1]}"
                yield label, self._feed(list(itertools.islice(images, batch)), label)

    def shard(self, indices: Sequence[int]) -> Source:
        """Return the images of these feeds."""
        wanted = self._numbers(indices)
        some = self._images.some(wanted)
        if some is None:
            return super().shard(indices)
        return ImageSource(
            plan=self._plan,
            labels=[self._labels[index] for index in wanted],
            images=some,
            origin=self._origin,
            names=[self.names[index] for index in indices] if self.names else (),
        )

    def digest(self, index: int) -> bytes | None:
        """Return a hash of the images of a feed."""
        parts = [self._images.digest(number) for number in self._numbers([index])]
        found = [part for part in parts if part is not None]
        return hashlib.sha256(b"".join(found)).digest() if len(found) == len(parts) else None

    def _numbers(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers of the images that make feeds."""
        batch = self._plan.batch
        return [index * batch + k for index in indices for k in range(batch)]

    def count(self) -> int:
        """Return the number of feeds."""
        return len(self._labels) // self._plan.batch

    def describe(self) -> str:
        """Return how many images from where, and what is done to them."""
        count = self.count() * self._plan.batch
        origin = self._origin.replace("images", "image", 1) if count == 1 else self._origin
        return f"{count} {origin}, {self._plan}"

    def _feed(self, group: list[NDArray[Any]], label: str) -> NDArray[Any]:
        if not self._plan.has_batch_axis:
            return group[0]
        if len({values.shape for values in group}) > 1:
            raise DataError(
                f"{label}: images of different sizes cannot be fed together, and the model "
                f"fixes the batch at {self._plan.batch}: give a --crop"
            )
        return np.stack(group)


def open_image_folder(
    folder: Path, paths: Sequence[Path], plan: ImagePlan, limit: int | None, *, not_read: int = 0
) -> ImageSource:
    """Return the images of a folder; a limit takes them evenly spaced.

    The names of class folders sort by class, so the first few would all be of one class. ``not_read`` is how
    many arrays lie in the same folder.
    """
    origin = f"images from folder {folder}"
    chosen = _spaced(paths, None if limit is None else limit * plan.batch)
    if len(chosen) < len(paths):
        origin += f" (evenly spaced over {len(paths)})"
    if not_read:
        origin += f" ({not_read} .npy skipped)"
    return ImageSource(
        plan=plan,
        labels=[f"image {path.relative_to(folder)}" for path in chosen],
        names=[path.relative_to(folder).as_posix() for path in chosen],
        images=KeptImages(ImageFiles(chosen, plan)),
        origin=origin,
    )


def open_pixel_rows(table: Table, plan: ImagePlan, limit: int | None) -> ImageSource:
    """Return rows of ``[H, W]`` or ``[H, W, C]`` pixels as images."""
    rows, origin = table.arrays[plan.info.name], table.origin
    is_image = rows.ndim == 3 or (rows.ndim == 4 and rows.shape[-1] in (1, 3))
    if not is_image:
        raise DataError(
            f"{origin}: uint8 array of shape {list(rows.shape)} holds no images, expected "
            "[rows, height, width, 3 or 1]: transpose it"
        )
    count = len(rows) if limit is None else min(len(rows), limit * plan.batch)
    return ImageSource(
        plan=plan,
        labels=[f"row {index} of {origin}" for index in range(count)],
        images=ImageRows(table, plan, range(count)),
        origin=f"images from {origin}",
    )
