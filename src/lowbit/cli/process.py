"""The process of a command: its streams, its signals, and what libraries would print into both.

Imports nothing heavy.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn, TextIO

from lowbit.errors import OutputError


class TerminatedError(BaseException):
    """Somebody asked the process to end (SIGTERM); no handler of errors may catch it."""


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Make the process behave as a command's should, while the body runs.

    Streams that are closed fail when they are written to, and no file takes their number. SIGTERM
    unwinds like an error, so that temporary files go. Libraries neither warn nor log.
    """
    _open_closed_streams()
    before = signal.signal(signal.SIGTERM, _terminate)
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        with warnings.catch_warnings(), _signals_sent_again():
            if not sys.warnoptions:
                warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger().removeHandler(silent)
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    signal.signal(number, signal.SIG_IGN)  # cleaning up is not interrupted by a second one
    raise TerminatedError


@contextlib.contextmanager
def _signals_sent_again() -> Iterator[None]:
    """Send a signal again that came while an object was removed: Python ignores what is raised there."""
    show = sys.unraisablehook

    def send_again(ignored: Any) -> None:
        if ignored.exc_type is TerminatedError:
            number = signal.SIGTERM
            signal.signal(number, _terminate)
        elif ignored.exc_type is KeyboardInterrupt:
            number = signal.SIGINT
        else:
            show(ignored)
            return
        # Not before this function, which has to end first, has returned.
        later = threading.Timer(0.05, _thread.interrupt_main, (number,))
        later.daemon = True
        later.start()

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = show


def _open_closed_streams() -> None:
    # What is read from nowhere is empty, and what is written to stdout fails: the result is lost.
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        _open_if_closed(number, mode)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _open_if_closed(number: int, mode: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, mode)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)


class _Result:
    """A stream for results: what cannot be written is an error that says so."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        with _named():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what waits."""
        with _named():
            self._stream.flush()


@contextlib.contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:  # whoever read it has seen enough
        raise
    except OSError as error:
        drop_output()
        raise OutputError(f"cannot write to stdout: {error.strerror or error}") from error


@contextlib.contextmanager
def checked_output() -> Iterator[None]:
    """Raise an error if stdout cannot be written to; print characters it lacks as their codes."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    with contextlib.redirect_stdout(_Result(sys.stdout)):
        yield
        sys.stdout.flush()


def drop_output() -> None:
    """Send the rest of stdout nowhere, so that the interpreter's last flush does not fail."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(message: str) -> None:
    """Print a line on stderr; nobody can be told if that fails."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"lowbit: {message}\n")
        sys.stderr.flush()


def print_json(value: object) -> None:
    """Print a value as JSON, indented and never wrapped."""
    import msgspec

    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
