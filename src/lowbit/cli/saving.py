"""Writing several files so that either all of them appear, complete, or none."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from lowbit.errors import OutputError
from lowbit.files import temporary_folder

Write = Callable[[pathlib.Path], None]


@contextmanager
def writing(files: Mapping[str, Write]) -> Iterator[None]:
    """Write files under other names; move them when the body is done without error."""
    with ExitStack() as stack:
        moves = []
        for name, write in files.items():
            path = pathlib.Path(name)
            folder = stack.enter_context(temporary_folder(path.parent))
            try:
                write(folder / path.name)
            except OSError as error:
                raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
            moves.append((folder / path.name, path))
        yield
        for source, path in moves:
            os.replace(source, path)
