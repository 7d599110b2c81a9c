"""Writing several files so that either all of them appear, complete, or none."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from lowbit.errors import OutputError
from lowbit.graph import io

Write = Callable[[pathlib.Path], None]


def check_outputs(outputs: Mapping[str, str | None], sources: Sequence[str] = ()) -> None:
    """Raise now, before any work, for what cannot be written or would overwrite a source.

    ``outputs`` are paths by the option that gives them; ``None`` where it is not given.
    """
    seen = {os.path.realpath(path): path for path in sources}
    for option, path in outputs.items():
        if path is None:
            continue
        io.check_writable(path)
        real = os.path.realpath(path)
        if real in seen:
            raise OutputError(
                f"{option} {path} would overwrite {seen[real]}, which this run needs; "
                "give it another name"
            )
        seen[real] = f"{path} ({option})"


@contextmanager
def writing(files: Mapping[str, Write]) -> Iterator[None]:
    """Write files under other names; move them when the body is done without error."""
    with ExitStack() as stack:
        moves = []
        for name, write in files.items():
            path = pathlib.Path(name)
            folder = stack.enter_context(_folder_beside(path))
            try:
                write(folder / path.name)
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
            moves.append((folder / path.name, path))
        yield
        for source, path in moves:
            os.replace(source, path)


@contextmanager
def _folder_beside(path: pathlib.Path) -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".lowbit-") as folder:
        yield pathlib.Path(folder)
