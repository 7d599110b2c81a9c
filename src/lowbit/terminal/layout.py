"""The one look of all tables."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def make_table(title: str, *names: str, figures: int = 0) -> Table:
    """Return an empty table; the last ``figures`` columns hold numbers and are never cut."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=Text(title, style="bold"),
        title_justify="left",
        title_style="",
        show_edge=False,
        pad_edge=False,
        header_style="dim",
    )
    for index, name in enumerate(names):
        is_figure = index >= len(names) - figures
        table.add_column(name, justify="right" if is_figure else "left", no_wrap=is_figure)
    return table


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
