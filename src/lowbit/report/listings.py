"""Listings: a plan, presets, targets, and how alike two folders of results are."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lowbit.config.presets import Preset
from lowbit.evaluate.folders import Evaluation, FileScore
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.report.tables import (
    Name,
    cosine,
    counted,
    described,
    make_facts,
    make_table,
    nodes_table,
    number,
    reasons_table,
    show,
)
from lowbit.targets.target import Target

_WIDE = 132
"""Columns from which on a tensor and its reason, or every property, have a column of their own."""


def show_plan(
    console: Console, plan: Plan, target: Target, *, nodes: int, everything: bool
) -> None:
    """Print the decisions; ``everything`` lists each node that stays in float."""
    facts = make_facts()
    facts.add_row("preset", f"{plan.preset} for {plan.target}")
    facts.add_row(
        "quantized",
        f"{counted(len(plan.activations()), 'activation')}, "
        f"{counted(len(plan.weights()), 'weight')}, {counted(len(plan.biases), 'bias', 'biases')}",
    )
    facts.add_row("in float", f"{len(plan.float_nodes)} of {counted(nodes, 'node')}")
    if plan.groups:
        facts.add_row("kept equal", f"{counted(len(plan.groups), 'group')} of tensors")
    show(console, facts)
    for heading, rows in _sections(plan):
        show(console, _decisions(heading, rows, wide=console.width >= _WIDE))
    title = f"stays in float, on {target.fallback}"
    show(console, reasons_table(plan.float_nodes, title))
    if everything:
        show(console, nodes_table(plan.float_nodes, "every node that stays in float"))


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """One decision, as it is shown."""

    tensor: str
    format: str
    shares: str
    why: str


def _sections(plan: Plan) -> Iterator[tuple[str, list[_Row]]]:
    for heading, tensors in (("activations", plan.activations()), ("weights", plan.weights())):
        yield heading, [_row_of(tensor) for tensor in tensors]
    yield "biases", [_Row(b.tensor, described(b.spec), "", b.why) for b in plan.biases]


def _row_of(tensor: TensorPlan) -> _Row:
    shares = "" if tensor.leader == tensor.name else tensor.leader
    return _Row(tensor.name, _format(tensor), shares, tensor.why.split("; same numbers as ")[0])


def _decisions(heading: str, rows: Sequence[_Row], *, wide: bool) -> Table:
    """Return a line a tensor or, where that is too narrow, its reason on a line of its own."""
    if not wide:
        table = make_table(heading, "tensor, and why", "format")
        for row in rows:
            shares = f"; shares with {row.shares}" if row.shares else ""
            reason = Name(f"  {row.why}{shares}", style="dim")
            table.add_row(Group(Name(row.tensor), reason), row.format)
    elif any(row.shares for row in rows):
        table = make_table(heading, "tensor", "format", "shares with", "why")
        for row in rows:
            table.add_row(Name(row.tensor), row.format, Name(row.shares), Name(row.why))
    else:
        table = make_table(heading, "tensor", "format", "why")
        for row in rows:
            table.add_row(Name(row.tensor), row.format, Name(row.why))
    # Names give way, formats do not.
    table.columns[1].no_wrap = True
    return table


def _format(row: TensorPlan) -> str:
    if row.range is not None:
        low, high = row.range
        return f"{row.spec.describe()} {low:g}..{high:g}"
    return row.spec.describe()


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
    return (described(config.activation), described(config.weight), described(config.bias))


_FEW = 20
_TITLES = {"cosine": "cosine similarity", "l2": "L2 distance", "psnr": "PSNR dB", "ssim": "SSIM"}


def show_evaluation(console: Console, found: Evaluation, *, everything: bool) -> None:
    """Print mean and worst of each figure, and the files: all, or those that differ most."""
    table = make_table(f"{len(found.files)} results", "figure", "mean", "worst", "worst in")
    for column in table.columns[1:3]:
        column.justify, column.no_wrap = "right", True
    for row in found.summary:
        figures = (_shown(row.figure, row.mean), _shown(row.figure, row.worst))
        table.add_row(_TITLES[row.figure], *figures, Name(row.worst_name))
    show(console, table)
    few = not everything and len(found.files) > _FEW
    files = sorted(found.files, key=_similarity)[:_FEW] if few else found.files
    title = f"the {_FEW} that differ most (--all lists every file)" if few else "files"
    rows = make_table(title, "file", "shape", "cosine", "L2", "PSNR dB", "SSIM", figures=5)
    for score in files:
        shape = "x".join(map(str, score.shape)) or "scalar"
        shown = (_shown(figure, getattr(score, figure)) for figure in _TITLES)
        rows.add_row(Name(score.name), shape, *shown)
    show(console, rows)


def _similarity(score: FileScore) -> float:
    return -math.inf if math.isnan(score.cosine) else score.cosine


def _shown(figure: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if figure == "psnr":
        return "equal" if value == math.inf else f"{value:.2f}"
    return number(value) if figure == "l2" else cosine(value)
