"""Files wherever they are: on this machine, or at a URL that fsspec knows."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Iterator
from typing import IO, Any

from lowbit.errors import DataError
from lowbit.files import TemporaryFolder
from lowbit.store import is_url, located


def absolute(name: str) -> str:
    """Return a name that means the same in every process: a URL, or a whole path."""
    return name if is_url(name) else str(pathlib.Path(name).expanduser().absolute())


@contextlib.contextmanager
def open_file(name: str) -> Iterator[IO[Any]]:
    """Open a file for reading bytes anywhere in it."""
    try:
        # Some file systems, such as that of a .zip, end with the last that knows them.
        system, path = located(name) if is_url(name) else (None, name)
        opened = pathlib.Path(path).open if system is None else functools.partial(system.open, path)
        file = opened("rb")
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{name} cannot be read: {error}") from error
    with file:
        yield file


def read_bytes(name: str) -> bytes:
    """Return the whole content of a file."""
    with open_file(name) as file:
        data: bytes = file.read()
    return data


def list_files(url: str) -> list[str]:
    """Return the URLs of all files under a URL, in order; the file alone if it is one."""
    system, path = located(url)
    try:
        if path and system.isfile(path):
            return [url]
        found = system.find(path)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{url} cannot be listed: {error}") from error
    # Of a file in a file (zip://a.npy::s3://bucket/data.zip) the outer one stays as it is.
    head, chain, tail = url.partition("::")
    protocol = head.partition("://")[0]
    seen = (name for name in found if not name.rpartition("/")[2].startswith("."))
    return sorted(f"{protocol}://{name.lstrip('/')}{chain}{tail}" for name in seen)


def relative_name(url: str, folder: str) -> str:
    """Return what a file is called in a folder, both as URLs."""
    path, root = (located(name)[1].strip("/") for name in (url, folder))
    return path.removeprefix(root).lstrip("/") or path


@functools.lru_cache(maxsize=4)
def _copied(url: str) -> tuple[TemporaryFolder, pathlib.Path]:
    folder = TemporaryFolder()
    path = folder.path / url.partition("::")[0].rstrip("/").rsplit("/", 1)[-1]
    path.write_bytes(read_bytes(url))
    return folder, path


def local_path(name: str) -> pathlib.Path:
    """Return a file of this machine: of a URL a copy, one in each process."""
    return _copied(name)[1] if is_url(name) else pathlib.Path(name)
