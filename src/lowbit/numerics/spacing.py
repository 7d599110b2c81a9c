"""Evenly spaced indices, and runs of nearly equal length."""

from __future__ import annotations

import numpy as np


def evenly_spaced(total: int, count: int) -> list[int]:
    """Return ``count`` evenly spaced indices below ``total``, from 0 on; all of them if there are no more."""
    count = min(count, total)
    return [i * total // count for i in range(count)]


def evenly_inside(total: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced indices below ``total``, away from both ends where there is room."""
    if count <= 0 or total <= 0:
        return []
    return sorted({int(i) for i in np.linspace(0, total - 1, count + 2)[1:-1].round()})


def even_bounds(length: int, parts: int) -> list[int]:
    """Return the bounds of runs of nearly equal length: at most ``parts`` runs, none of them empty."""
    parts = min(parts, length)
    return [round(i * length / parts) for i in range(parts + 1)] if parts else []
