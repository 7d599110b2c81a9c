"""The presets and the targets there are."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from lowbit.config.presets import Preset
from lowbit.config.specs import Spec
from lowbit.targets import Target
from lowbit.terminal.layout import make_table, show
from lowbit.terminal.plan import describe_bias

_WIDE = 132
"""Columns from which on every property gets its own column."""


def show_presets(console: Console, presets: Sequence[Preset]) -> None:
    """Print the presets, one a row."""
    names = ("name", "activation", "weight", "bias", "target", "summary")
    rows = [(p.name, *_formats(p), p.config.target, p.summary) for p in presets]
    _show(console, "presets", names, rows)


def show_targets(console: Console, targets: Sequence[Target]) -> None:
    """Print the targets, one a row."""
    names = ("name", "activation", "weight", "scales", "description")
    rows = [
        (
            target.name,
            " ".join(f.value for f in target.activation_formats),
            " ".join(f.value for f in target.weight_formats),
            "power-of-two" if target.power_of_two else "float",
            target.description,
        )
        for target in targets
    ]
    _show(console, "targets", names, rows)
    console.print("`lowbit targets NAME` prints one as JSON, a start for a file of your own.")


def _show(
    console: Console, title: str, names: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    """Print a column for each property or, where that is too wide, a line under the summary."""
    if console.width >= _WIDE:
        table = make_table(title, *names)
        for row in rows:
            table.add_row(*row)
    else:
        first, *between, last = names
        table = make_table(title, first, f"{last}; {' / '.join(between)}")
        for name, *properties, summary in rows:
            table.add_row(name, Text.assemble(summary, "\n", (" / ".join(properties), "dim")))
    for column in table.columns[:-1]:
        column.no_wrap = True
    show(console, table)


def _formats(preset: Preset) -> tuple[str, str, str]:
    config = preset.config
    return (_described(config.activation), _described(config.weight), describe_bias(config.bias))


def _described(spec: Spec | None) -> str:
    return "float" if spec is None else spec.describe()
