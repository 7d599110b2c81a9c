"""What AMD's own tests of the ONNX quantizer import: folders that are gone afterwards."""

from __future__ import annotations

import functools
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["delete_directory_content", "use_temporary_directory"]

_T = TypeVar("_T")


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
