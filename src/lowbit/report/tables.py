"""The parts of all terminal output: consoles, layout, names and numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from lowbit.config.specs import BiasSpec
from lowbit.errors import visible


def stdout() -> Console:
    """Return a console on stdout; it has no colour when piped."""
    return _plain(stderr=False)


def stderr() -> Console:
    """Return a console on stderr."""
    return _plain(stderr=True)


def _plain(*, stderr: bool) -> Console:
    return _VisibleConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


class _VisibleConsole(Console):
    """A console that shows control characters in names as codes instead of obeying them."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is printed, piece by piece."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                lines = map(visible, segment.text.split("\n"))
                yield Segment("\n".join(lines), segment.style)


def make_table(title: str, *names: str, figures: int = 0) -> Table:
    """Return an empty table; the last ``figures`` columns hold numbers and are never cut."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        min_width=len(title),
        title_style="",
        show_edge=False,
        pad_edge=False,
        header_style="dim",
    )
    for index, name in enumerate(names):
        is_figure = index >= len(names) - figures
        table.add_column(name, justify="right" if is_figure else "left", no_wrap=is_figure)
    return table


def below(text: str) -> Padding:
    """Return what is said of a name in the lines below it, indented however it wraps."""
    return Padding(Text(visible(text), style="dim"), (0, 0, 0, 2))


def make_facts() -> Table:
    """Return an empty grid of labels and what they say."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    return grid


def show(console: Console, table: Table) -> None:
    """Print a table that has rows, and an empty line after it."""
    if table.row_count:
        console.print(table)
        console.print()


_ELLIPSIS = "..."
_NARROWEST = 14


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A text that takes one line, however narrow the column.

    ``among``: the texts of its column, from which it is to be told however short it becomes.
    """

    text: str
    style: str = ""
    among: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the text, shortened to what there is room for."""
        short = shorten_among(self.text, options.max_width, self.among)
        yield Text(short, style=self.style, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how narrow it can be made, and how wide it would like to be."""
        width = len(self.text)
        most = max(1, min(width, options.max_width))
        return Measurement(min(most, _NARROWEST), most)


@dataclasses.dataclass(frozen=True, slots=True)
class Sentence:
    """A text that takes a few lines at most, whole words on each."""

    text: str
    most: int = 2

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines; the last says with dots that there is more."""
        width = options.max_width
        lines = [line.plain.rstrip() for line in Text(visible(self.text)).wrap(console, width)]
        if len(lines) > self.most:
            room = max(width - len(_ELLIPSIS) - 1, 0)
            last = lines[self.most - 1]
            kept = last if len(last) <= room else last[:room].rpartition(" ")[0].rstrip(",;:")
            lines[self.most - 1 :] = [f"{kept} {_ELLIPSIS}"[:width]]
        yield Text("\n".join(lines))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return how narrow it can be made, and how wide it would like to be."""
        most = max(1, min(len(self.text), options.max_width))
        return Measurement(min(most, _NARROWEST), most)


def describe_note(note: str) -> Text:
    """Return a note as it is printed."""
    return Text(f"note: {note}", style="yellow")


def show_notes(console: Console, notes: Iterable[str]) -> None:
    """Print notes, a paragraph each."""
    for note in notes:
        console.print(describe_note(note))


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


def shorten_among(text: str, width: int, among: Iterable[str]) -> str:
    """Return the text in at most ``width`` characters, with the part that tells it from others.

    Layers of one kind differ in the middle of their names (``encoder/layer.11/attention/query``).
    """
    short = shorten(text, width)
    group = [text, *(other for other in among if other != text and shorten(other, width) == short)]
    if len(group) == 1:
        return short
    start = _common(group)
    end = max(start, len(text) - _common([name[::-1] for name in group]))
    # Whole words, and as much of what follows as there is room for.
    start = text.rfind("/", 0, start) + 1
    end = min(len(text), max(end, start + width - 2 * len(_ELLIPSIS)))
    front, back = _ELLIPSIS * (start > 0), _ELLIPSIS * (end < len(text))
    room = width - len(front) - len(back)
    return f"{front}{shorten(text[start:end], room)}{back}" if room > 0 else short


def _common(texts: Sequence[str]) -> int:
    """Return with how many characters all texts begin alike."""
    columns = zip(*texts, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


_UNITS = ("kB", "MB", "GB", "TB")
_EXACT_DB = 150.0
"""Beyond what float32 can distinguish: two tensors are equal where it matters (masks of -1e38 have 800 dB)."""


def decibels(value: float) -> str:
    """Return a SQNR; two equal tensors are ``exact``."""
    if math.isnan(value):
        return "unknown"
    if value > _EXACT_DB:
        return "exact"
    if math.isinf(value):
        return "no signal"
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


def described(spec: BiasSpec | None) -> str:
    """Return a spec in a few words; nothing stays float."""
    return "float" if spec is None else spec.describe()


def counted(count: int, word: str, plural: str | None = None) -> str:
    """Return ``1 node``, ``2 nodes``."""
    return f"{count} {word if count == 1 else plural or word + 's'}"


class InFloat(Protocol):
    """The common fields of the rows of plans and reports."""

    @property
    def node(self) -> str:
        """The node."""

    @property
    def op_type(self) -> str:
        """Its operator."""

    @property
    def why(self) -> str:
        """The reason."""


def reasons_table(nodes: Sequence[InFloat], title: str, *, most: int | None = None) -> Table:
    """Return how many nodes stay in float for which reason, the commonest first."""
    table = make_table(title, "nodes", "why", "operators")
    table.columns[0].justify = "right"
    counts = Counter(node.why for node in nodes)
    ranked = counts.most_common(most)
    for why, count in ranked:
        operators = _listed(node.op_type for node in nodes if node.why == why)
        table.add_row(str(count), why, operators)
    left = counts.total() - sum(count for _, count in ranked)
    if left:
        table.add_row(str(left), f"{len(counts) - len(ranked)} more reasons", "")
    return table


def nodes_table(nodes: Sequence[InFloat]) -> Table:
    """Return every node that stays in float, with its reason."""
    table = make_table("every node that stays in float", "node", "operator", "why")
    for node in nodes:
        table.add_row(Name(node.node), node.op_type, Name(node.why))
    return table


def _listed(words: Iterable[str]) -> str:
    most = 4
    ranked = Counter(words).most_common()
    shown = [word if count == 1 else f"{word} x{count}" for word, count in ranked[:most]]
    return ", ".join([*shown, *(["..."] if len(ranked) > most else [])])
