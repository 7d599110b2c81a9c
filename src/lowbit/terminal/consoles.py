"""Consoles that print what they are given: names of tensors are no markup and no emoji."""

from __future__ import annotations

from rich.console import Console


def stdout() -> Console:
    """Return a console on stdout; it leaves out colour when piped."""
    return _plain(stderr=False)


def stderr() -> Console:
    """Return a console on stderr."""
    return _plain(stderr=True)


def _plain(*, stderr: bool) -> Console:
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)
