"""Tasks for workers: in a module, so that other processes can import them."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import uuid

from lowbit.errors import DataError
from lowbit.parallel import cpu_count, worker_count
from lowbit.store import Store


def square(item: int) -> int:
    return item * item


def process(_: object) -> tuple[int, int, int | None]:
    """Return the process, and how it would share out work of its own."""
    return os.getpid(), cpu_count(), worker_count()


def total(item: int, shared) -> float:
    return float(shared["numbers"].sum()) + item


class Recorded:
    """Squares, with a note in a folder of each run; what ``harm`` names goes wrong at first, or always."""

    def __init__(self, folder: pathlib.Path, harm: dict[int, str], *, always: bool = False) -> None:
        self.folder, self.harm, self.always = folder, harm, always

    def __call__(self, item: int) -> int:
        before = list(self.folder.glob(f"{item}-*"))
        (self.folder / f"{item}-{uuid.uuid4().hex}").touch()
        if item in self.harm and (self.always or not before):
            match self.harm[item]:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "raise":
                    raise OSError("the network is down")
                case "refuse":
                    raise DataError("sample 3 is broken; repair it")
        return item * item

    def runs(self, item: int) -> int:
        return len(list(self.folder.glob(f"{item}-*")))


class KillingStore(Store):
    """Notes each result that is to be kept; the first time, its process dies before it is."""

    def put(self, key: str, body: bytes) -> None:
        notes = pathlib.Path(f"{self.location}-computed")
        notes.mkdir(exist_ok=True)
        (notes / uuid.uuid4().hex).touch()
        # Two workers may be at their first result at once, and only one is to die.
        with contextlib.suppress(FileExistsError):
            pathlib.Path(f"{self.location}-killed").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        super().put(key, body)
