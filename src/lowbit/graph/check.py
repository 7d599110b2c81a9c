"""Is a written file valid ONNX, and does onnxruntime load it?"""

from __future__ import annotations

import pathlib

from lowbit.errors import ModelError, VerificationError
from lowbit.graph.session import Session

# Beyond this, inferring shapes in full costs more memory than checking is worth.
_FULL_CHECK_BELOW = 1 << 30


def check_file(path: pathlib.Path) -> None:
    """Raise unless the file passes ``onnx.checker`` and loads with every optimization.

    That it loads and runs without any is shown by measuring it.
    """
    check_valid(path)
    try:
        Session(path, threads=1, optimize="all", name=str(path))
    except ModelError as error:
        raise VerificationError(str(error)) from error


def check_valid(path: pathlib.Path) -> None:
    """Raise unless the file passes ``onnx.checker``, which leaves weights outside it unread."""
    import onnx.checker

    try:
        onnx.checker.check_model(str(path), full_check=path.stat().st_size < _FULL_CHECK_BELOW)
    except Exception as error:  # the checker's exceptions share no public base
        raise VerificationError(f"{path} is not valid ONNX: {str(error)[:600]}") from error
