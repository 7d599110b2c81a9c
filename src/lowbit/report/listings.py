"""Listings: presets, targets, and how alike two folders of results are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from lowbit.config.presets import Preset
from lowbit.config.specs import Spec
from lowbit.evaluate import Evaluation, FileScore
from lowbit.report.plan import describe_bias
from lowbit.report.tables import Name, cosine, make_table, number, show
from lowbit.targets import Target

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


_FEW = 20
_TITLES = {"cosine": "cosine similarity", "l2": "L2 distance", "psnr": "PSNR dB", "ssim": "SSIM"}


def show_evaluation(console: Console, found: Evaluation, *, everything: bool) -> None:
    """Print mean and worst of each figure, and the files: all, or the most unlike ones."""
    table = make_table(f"{len(found.files)} results", "figure", "mean", "worst", "worst in")
    for column in table.columns[1:3]:
        column.justify, column.no_wrap = "right", True
    for row in found.summary:
        figures = (_shown(row.figure, row.mean), _shown(row.figure, row.worst))
        table.add_row(_TITLES[row.figure], *figures, Name(row.worst_name))
    show(console, table)
    few = not everything and len(found.files) > _FEW
    files = sorted(found.files, key=_unlike)[:_FEW] if few else found.files
    title = f"the {_FEW} most unlike (--all lists every file)" if few else "files"
    rows = make_table(title, "file", "shape", "cosine", "L2", "PSNR dB", "SSIM", figures=5)
    for score in files:
        shape = "x".join(map(str, score.shape)) or "scalar"
        shown = (_shown(figure, getattr(score, figure)) for figure in _TITLES)
        rows.add_row(Name(score.name), shape, *shown)
    show(console, rows)


def _unlike(score: FileScore) -> float:
    return -math.inf if math.isnan(score.cosine) else score.cosine


def _shown(figure: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if figure == "psnr":
        return "equal" if value == math.inf else f"{value:.2f}"
    return number(value) if figure == "l2" else cosine(value)
