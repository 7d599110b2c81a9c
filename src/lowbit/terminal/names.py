"""Long names in narrow columns: cut in the middle, because both ends tell names apart."""

from __future__ import annotations

import dataclasses

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

_ELLIPSIS = "..."
_NARROWEST = 14


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A text that takes one line, however narrow the column."""

    text: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the text, shortened to what there is room for."""
        short = shorten(self.text, options.max_width)
        yield Text(short, style=self.style, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how narrow it can be made, and how wide it would like to be."""
        width = len(self.text)
        most = max(1, min(width, options.max_width))
        return Measurement(min(most, _NARROWEST), most)


def shorten(text: str, width: int) -> str:
    """Return the text in at most ``width`` characters, without its middle where it is longer."""
    if len(text) <= width:
        return text
    kept = width - len(_ELLIPSIS)
    if kept < 2:
        return text[: max(width, 0)]
    # The end of a tensor's name says more than its beginning: it gets the odd character.
    front = kept // 2
    return f"{text[:front]}{_ELLIPSIS}{text[front - kept :]}"
