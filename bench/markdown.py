"""Tables and numbers in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns in which nothing stands are skipped, the first two never."""
    rows = [list(row) for row in rows]
    kept = [
        index
        for index in range(len(head))
        if index < 2 or any(row[index] not in ("", "-") for row in rows)
    ]
    lines = [
        [head[i] for i in kept],
        ["---"] * len(kept),
        *([row[i] for i in kept] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with so many digits behind the point, or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def times(value: float | None) -> str:
    """Return a ratio with about three digits, or a dash."""
    if value is None:
        return "-"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{digits}f}x"
