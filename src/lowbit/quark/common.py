"""Shared parts of Quark's API: a logger, and folders for AMD's own tests of the ONNX quantizer."""

from __future__ import annotations

import functools
import logging
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["ScreenLogger", "delete_directory_content", "log_errors", "use_temporary_directory"]
# The names below this one are rows of a table.
__path__: list[str] = []

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no type before Python 3.11

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


class ScreenLogger(_Adapter):
    """A plain logger of Python's by name: lowbit leaves handlers to the application."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    @classmethod
    def set_shared_level(cls, level: int) -> None:
        """Set the level of all of them."""
        logging.getLogger("quark").setLevel(level)


def log_errors(function: _F) -> _F:
    """Return the function itself: an error is said once, where it is raised."""
    return function


def use_temporary_directory(func: Callable[..., _T]) -> Callable[..., _T]:
    """Return a function that is called with a temporary folder as ``tmpdir``."""

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> _T:
        with tempfile.TemporaryDirectory() as folder:
            return func(*args, **{**kwargs, "tmpdir": folder})

    return called


def delete_directory_content(directory: str) -> None:
    """Remove all that is in a folder, which stays."""
    for path in pathlib.Path(directory).iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
