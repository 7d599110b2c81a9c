"""Pictures as a source of feeds: from a folder, or from rows of pixels.

Decoding runs a few pictures ahead in threads, in order and in bounded memory.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lowbit.data.picture_plan import PicturePlan
from lowbit.data.rendering import render_file, render_pixels
from lowbit.data.rows import Table
from lowbit.errors import DataError

AHEAD = 4
"""Pictures that are decoded before they are asked for."""


class PictureSource:
    """Pictures by number, made into feeds of as many as the model takes at a time."""

    def __init__(
        self,
        *,
        plan: PicturePlan,
        labels: Sequence[str],
        load: Callable[[int], NDArray[Any]],
        origin: str,
        names: Sequence[str] = (),
    ) -> None:
        """Take what loads picture ``i``, what it is called, and where all of them are from.

        ``names`` are the pictures' files, where they are files.
        """
        self.names = tuple(names) if plan.batch == 1 else ()
        self._plan = plan
        self._labels = labels
        self._load = load
        self._origin = origin
        if len(labels) < plan.batch:
            raise DataError(
                f"{origin}: {len(labels)} pictures, but the model fixes the batch at "
                f"{plan.batch}: give at least as many"
            )

    def __iter__(self) -> Iterator[tuple[str, object]]:
        """Yield feeds in order; an incomplete last one is left out."""
        batch = self._plan.batch
        with closing(_run_ahead(self._load, self.count() * batch)) as pictures:
            for start in range(0, self.count() * batch, batch):
                label = self._labels[start]
                if batch > 1:
                    label += f" to {self._labels[start + batch - 1]}"
                yield label, self._feed(list(itertools.islice(pictures, batch)), label)

    def count(self) -> int:
        """Return the number of feeds."""
        return len(self._labels) // self._plan.batch

    def describe(self) -> str:
        """Return how many pictures from where, and what is done to them."""
        return f"{self.count() * self._plan.batch} {self._origin}, {self._plan}"

    def _feed(self, group: list[NDArray[Any]], label: str) -> NDArray[Any]:
        if not self._plan.has_batch_axis:
            return group[0]
        if len({values.shape for values in group}) > 1:
            raise DataError(
                f"{label}: pictures of different sizes cannot be fed together, and the model "
                f"fixes the batch at {self._plan.batch}: give a --crop"
            )
        return np.stack(group)


def open_picture_folder(
    folder: Path, paths: Sequence[Path], plan: PicturePlan, limit: int | None
) -> PictureSource:
    """Return the pictures of a folder; a limit takes them evenly spaced.

    The names of class folders sort by class, so the first few would all be of one class.
    """
    chosen = paths
    origin = f"images from folder {folder}"
    if limit is not None and limit * plan.batch < len(paths):
        wanted = limit * plan.batch
        chosen = [paths[index * len(paths) // wanted] for index in range(wanted)]
        origin += f" (evenly spaced over {len(paths)})"
    return PictureSource(
        plan=plan,
        labels=[f"picture {path.relative_to(folder)}" for path in chosen],
        names=[path.relative_to(folder).as_posix() for path in chosen],
        load=lambda index: render_file(chosen[index], plan),
        origin=origin,
    )


def open_pixel_rows(table: Table, plan: PicturePlan, limit: int | None) -> PictureSource:
    """Return rows of ``[H, W]`` or ``[H, W, C]`` pixels as pictures."""
    rows, origin = table.arrays[plan.info.name], table.origin
    is_picture = rows.ndim == 3 or (rows.ndim == 4 and rows.shape[-1] in (1, 3))
    if not is_picture:
        raise DataError(
            f"{origin}: uint8 array of shape {list(rows.shape)} holds no pictures, expected "
            "[rows, height, width, 3 or 1]: transpose it"
        )
    count = len(rows) if limit is None else min(len(rows), limit * plan.batch)
    labels = [f"row {index} of {origin}" for index in range(count)]

    def load(index: int) -> NDArray[Any]:
        # Through the table, which keeps the file behind the rows alive.
        return render_pixels(table.arrays[plan.info.name][index], plan, labels[index])

    return PictureSource(plan=plan, labels=labels, load=load, origin=f"pictures from {origin}")


def _run_ahead(
    load: Callable[[int], NDArray[Any]], count: int
) -> Generator[NDArray[Any], None, None]:
    """Yield ``load(0)`` to ``load(count - 1)`` in order, a few of them computed ahead."""
    pool = ThreadPoolExecutor(max_workers=min(AHEAD, os.cpu_count() or 1))
    pending: deque[Future[NDArray[Any]]] = deque()
    try:
        for index in range(count):
            pending.append(pool.submit(load, index))
            if len(pending) == AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        # A caller who stops early must not wait for pictures nobody will see.
        pool.shutdown(wait=False, cancel_futures=True)
