"""Numbers as people read them."""

from __future__ import annotations

import math

_UNITS = ("kB", "MB", "GB", "TB")


def decibels(value: float) -> str:
    """Return a signal-to-noise ratio; two equal tensors are ``exact``."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "exact" if value > 0 else "no signal"
    return f"{value:.2f}"


def cosine(value: float) -> str:
    """Return a cosine with as many digits as tell good from perfect."""
    return "1" if value == 1 else f"{value:.6f}"


def number(value: float) -> str:
    """Return a number of any magnitude in few digits."""
    return f"{value:.3g}"


def size(count: int) -> str:
    """Return a number of bytes: ``14.0 MB``."""
    if count < 1000:
        return f"{count} B"
    power = 1
    # 999.95 would be shown as 1000.0.
    while count / 1000**power >= 999.95 and power < len(_UNITS):
        power += 1
    return f"{count / 1000**power:.1f} {_UNITS[power - 1]}"


def seconds(value: float) -> str:
    """Return a time: ``0.05 s``, ``3.2 s``, ``2 min 05 s``."""
    if value < 1:
        return f"{value:.2f} s"
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def counted(count: int, word: str, plural: str | None = None) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{count} {word if count == 1 else plural or word + 's'}"
