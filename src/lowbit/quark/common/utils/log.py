"""Quark's logger, as a plain logger of Python's: lowbit leaves handlers to the application."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["ScreenLogger", "log_errors"]

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter  # takes no type before Python 3.11

_F = TypeVar("_F", bound=Callable[..., Any])


class ScreenLogger(_Adapter):
    """A logger by name."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name), {})

    @classmethod
    def set_shared_level(cls, level: int) -> None:
        """Set the level of all of them."""
        logging.getLogger("quark").setLevel(level)


def log_errors(function: _F) -> _F:
    """Return the function itself: an error is said once, where it is raised."""
    return function
