"""Models in other processes: sent once as the bytes of their files, kept open under a content hash."""

from __future__ import annotations

import atexit
import collections
import contextlib
import hashlib
import pathlib
import threading
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.files import TemporaryFolder, temporary_folder
from lowbit.graph import io
from lowbit.graph.session import Array, Optimize, Session

Files = Mapping[str, Array]
"""The files of a model as bytes, by name."""

_MODEL = "model.onnx"
_MOST = 3
"""Open sessions: of a float model, a quantized one, and that one with fused kernels."""


@contextlib.contextmanager
def packed(model: ir.Model) -> Iterator[Files]:
    """Yield the files of a model, mapped: on the same machine they are sent by their path."""
    with io.as_file(model) as path:
        yield {
            file.name: np.memmap(file, np.uint8, "r")
            for file in sorted(path.parent.iterdir())
            if file.stat().st_size
        }


def content_hash(files: Files) -> str:
    """Return a hash of everything in a model's files."""
    whole = hashlib.sha256()
    for name, data in files.items():
        whole.update(f"{name}\0{data.size}\0".encode())
        whole.update(np.ascontiguousarray(data).data)
    return whole.hexdigest()


def kept_session(key: str, files: Files, *, threads: int, optimize: Optimize, name: str) -> Session:
    """Return the session of a model that this process may have open already.

    The key says everything about it. The least recently used of a few are closed.
    """

    def make() -> Session:
        with _unpacked(files) as path:
            return Session(path, threads=threads, optimize=optimize, name=name)

    return _KEPT.get(key, make)


@contextlib.contextmanager
def _unpacked(files: Files) -> Iterator[pathlib.Path]:
    """Yield the path of a model's files, which are there already or written now."""
    mapped = _mapped(files)
    if mapped is not None:
        yield mapped
        return
    with temporary_folder() as folder:
        _write(files, folder)
        yield folder / _MODEL


def unpacked_model(files: Files) -> ir.Model:
    """Return a model that was sent; its weights stay in files as long as this process lives."""
    mapped = _mapped(files)
    if mapped is not None:
        return io.load(mapped)
    folder = TemporaryFolder()
    atexit.register(folder.remove)
    _write(files, folder.path)
    return io.load(folder.path / _MODEL)


def _mapped(files: Files) -> pathlib.Path | None:
    """Return where the files are if they are on this machine."""
    name = getattr(files[_MODEL], "filename", None)
    return pathlib.Path(name) if name is not None and pathlib.Path(name).name == _MODEL else None


def _write(files: Files, folder: pathlib.Path) -> None:
    for name, data in files.items():
        data.tofile(folder / name)


class _Kept:
    """The sessions of one process, by key."""

    def __init__(self) -> None:
        self._sessions = collections.OrderedDict[str, Session]()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], Session]) -> Session:
        """Return a session, made if need be; the threads of a worker share it."""
        with self._lock:
            if key not in self._sessions:
                self._sessions[key] = make()
            self._sessions.move_to_end(key)
            while len(self._sessions) > _MOST:
                self._sessions.popitem(last=False)
            return self._sessions[key]

    def clear(self) -> None:
        """Close all."""
        with self._lock:
            self._sessions.clear()


_KEPT = _Kept()


def release_sessions() -> None:
    """Close what this process has kept open."""
    _KEPT.clear()
