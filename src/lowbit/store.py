"""Finished results under a content hash, in a folder or at an fsspec URL.

A key is a hash of everything that a result depends on, so what is there need never be compared or
removed. A file that was cut off counts as not there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import pathlib
import tempfile
from typing import Any

from lowbit.errors import ConfigError, OutputError

_CHECKSUM = 32


def content_key(*parts: str | bytes) -> str:
    """Return a hash of all parts, in their order."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


@dataclasses.dataclass(frozen=True)
class Store:
    """Results of a run that others may read: any number of processes and machines at a time."""

    location: str

    @classmethod
    def open(cls, location: str | os.PathLike[str]) -> Store:
        """Return the store in a folder, which is made if need be, or at a URL."""
        text = os.fspath(location)
        if is_url(text):
            file_system(text)
            return cls(text.rstrip("/"))
        folder = pathlib.Path(text).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"cannot keep results in {folder}: {error.strerror or error}; give another --state"
            ) from error
        return cls(str(folder))

    def get(self, key: str) -> bytes | None:
        """Return a result, or nothing if it is not there or damaged."""
        try:
            data = self._read(key)
        except FileNotFoundError:
            return None
        checksum, body = data[:_CHECKSUM], data[_CHECKSUM:]
        return body if hashlib.sha256(body).digest() == checksum else None

    def put(self, key: str, body: bytes) -> None:
        """Keep a result; it appears complete or not at all."""
        data = hashlib.sha256(body).digest() + body
        if is_url(self.location):
            file_system(self.location).pipe_file(self._path(key), data)
            return
        path = pathlib.Path(self._path(key))
        path.parent.mkdir(exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(data)
        os.replace(file.name, path)

    def _read(self, key: str) -> bytes:
        if is_url(self.location):
            found: bytes = file_system(self.location).cat_file(self._path(key))
            return found
        return pathlib.Path(self._path(key)).read_bytes()

    def _path(self, key: str) -> str:
        return f"{self.location}/{key[:2]}/{key}"


def is_url(text: str) -> bool:
    """Whether a word names a place that fsspec knows, such as ``s3://bucket/folder``."""
    return "://" in text


def file_system(url: str) -> Any:
    """Return fsspec's file system of a URL."""
    return located(url)[0]


def located(url: str) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, and the path there."""
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(
            f"{url} needs fsspec, which is not installed: pip install 'lowbit[fsspec]' and the "
            "package of its kind of storage (s3fs, gcsfs, ...)"
        ) from error
    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"cannot open {url}: {error}") from error
    return system, path
