"""Files that are written: where they may go, and temporary folders that never stay.

A temporary folder holds a lock as long as the process that made it lives. So folders that killed runs
left are known for certain, and the next run removes them: not by an age or by a process id, which
mean nothing where several machines share a folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import lzma
import os
import pathlib
import platform
import re
import secrets
import shutil
import sys
import tempfile
import tokenize
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from lowbit.errors import OutputError

if sys.platform != "win32":
    import fcntl

Path = str | os.PathLike[str]

DAMAGED: tuple[type[Exception], ...] = (
    *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, OverflowError, MemoryError),
    *(SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
    tokenize.TokenError,
)
"""The errors of reading a damaged, encrypted or foreign ``.npy`` or ``.npz``."""

_LONGEST_NAME = 255


class TemporaryFolder:
    """A folder of this process, removed by ``remove``, with the object, or at the latest with the program.

    If the program is killed, the next one that makes a temporary folder in the same place removes it.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """Make the folder in ``parent``, or where the system keeps temporary files."""
        locks: list[int] = []
        try:
            place = pathlib.Path(tempfile.gettempdir() if parent is None else parent)
            remove_abandoned(place)
            prefix = _prefix() if parent is None else f".{_prefix()}"
            self.path = place / f"{prefix}{secrets.token_hex(8)}"
            # First of all, so that whatever interrupts the rest leaves nothing.
            self._finalizer = weakref.finalize(self, _remove, self.path, locks)
            self.path.mkdir(0o700)
            while not _lock(self.path, locks):  # another process took it for abandoned
                with contextlib.suppress(FileExistsError):  # and perhaps removes it only now
                    self.path.mkdir(0o700)
        except OSError as error:
            where = "the system's temporary folder" if parent is None else str(parent)
            way_out = "; set TMPDIR to a folder with room" if parent is None else ""
            raise OutputError(
                f"cannot write into {where}: {error.strerror or error}{way_out}"
            ) from error

    def remove(self) -> None:
        """Remove the folder and all in it."""
        self._finalizer()


@contextlib.contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[pathlib.Path]:
    """Yield a new folder in ``parent``, or where the system keeps temporary files; remove it after."""
    folder = TemporaryFolder(parent)
    try:
        yield folder.path
    finally:
        folder.remove()


def _lock(folder: pathlib.Path, locks: list[int]) -> bool:
    """Lock a folder until the process ends, if it can be; whether no other process is known to have it.

    Where there are no locks to be had, nobody removes the folders of others.
    """
    if sys.platform == "win32":
        return True
    is_free = False
    try:
        locks.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.stat().st_ino == os.fstat(locks[-1]).st_ino:
            return True
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:  # a file system without locks, another user's folder, too many open files
        is_free = True
    while locks:
        os.close(locks.pop())
    return is_free


def _remove(folder: pathlib.Path, locks: Sequence[int]) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # an interruption, after which nothing removes the rest
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        for lock in locks:
            os.close(lock)


@functools.cache
def _prefix() -> str:
    """Return how the names of this machine's folders begin: locks need not reach other machines."""
    try:
        machine = pathlib.Path("/etc/machine-id").read_text("utf-8")
    except OSError:
        machine = ""
    word = hashlib.sha256(f"{platform.node()} {machine}".encode()).hexdigest()[:8]
    return f"lowbit-{word}-"


@functools.cache
def remove_abandoned(place: pathlib.Path) -> None:
    """Remove, once, the folders in ``place`` that processes of this machine left when they were killed."""
    own = re.compile(rf"\.?{re.escape(_prefix())}\w+")
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if own.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_if_abandoned(pathlib.Path(entry.path))


def _remove_if_abandoned(folder: pathlib.Path) -> None:
    with contextlib.suppress(OSError):  # gone meanwhile, or another user's
        locks: list[int] = []
        if _lock(folder, locks) and locks:
            _remove(folder, locks)


def check_writable(path: Path) -> None:
    """Raise now, before any work, when ``path`` cannot be written later."""
    path = pathlib.Path(path)
    folder = path.parent
    try:
        is_folder, exists = path.is_dir(), path.exists()
        if not folder.is_dir():
            raise OutputError(
                f"the folder {folder} of the output {path.name} does not exist; make it"
            )
    except OSError as error:  # such as a name that no file can have
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    if is_folder:
        raise OutputError(f"the output {path} is a folder; give the name of a file in it")
    if exists and not path.is_file():
        raise OutputError(
            f"the output {path} is a device, a pipe or a socket, which a file would replace; give "
            "the name of a file"
        )
    with temporary_folder(folder):
        pass
    if exists and not os.access(path, os.W_OK):
        raise OutputError(f"the output {path} exists and may not be overwritten")


def check_outputs(outputs: Mapping[str, Path | None], sources: Sequence[Path] = ()) -> None:
    """Raise now, before any work, for what cannot be written or would overwrite a source.

    ``outputs`` are paths by what they are called; ``None`` where there is none. A source that is a
    folder stands for all files in it.
    """
    # realpath, since Path.resolve fails on links that end in themselves.
    seen = {pathlib.Path(os.path.realpath(path)): str(path) for path in sources}
    for name, path in outputs.items():
        if path is None:
            continue
        check_writable(path)
        real = pathlib.Path(os.path.realpath(path))
        for known, source in seen.items():
            if _is_same(real, known) or (real.exists() and known in real.parents):
                raise OutputError(
                    f"{name} {os.fspath(path)} would overwrite {source}, which this run needs; "
                    "give it another name"
                )
        seen[real] = f"{os.fspath(path)} ({name})"


def _is_same(path: pathlib.Path, other: pathlib.Path) -> bool:
    """Whether two paths mean one file, also where the case of letters makes no difference."""
    with contextlib.suppress(OSError):
        return path == other or path.samefile(other)
    return False


def sibling(path: Path, ending: str) -> pathlib.Path:
    """Return the path of a file that goes with another: its name and an ending, if names may be so long."""
    path = pathlib.Path(path)
    name = path.name + ending
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:24] + ending
    return path.with_name(name)


Write = Callable[[pathlib.Path], object]
"""Writes a file under the path it is given."""


@contextlib.contextmanager
def writing(files: Mapping[str, Write]) -> Iterator[None]:
    """Write files under other names; move them when the body is done without error."""
    with contextlib.ExitStack() as stack:
        moves = []
        for name, write in files.items():
            path = pathlib.Path(name)
            with _named(path):
                folder = stack.enter_context(temporary_folder(path.parent))
                write(folder / path.name)
            moves.append((folder / path.name, path))
        yield
        for source, path in moves:
            with _named(path):
                os.replace(source, path)


@contextlib.contextmanager
def _named(path: pathlib.Path) -> Iterator[None]:
    """Say which file it is that cannot be written."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
