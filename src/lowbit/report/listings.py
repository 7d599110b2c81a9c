"""Listings: a plan, presets, targets, timings, and how alike two folders of results are."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lowbit.config.presets import PURPOSES, Preset
from lowbit.evaluate.benchmark import Timing
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

_REASONS = 10
_WIDE = 132
"""Columns from which on a tensor and its reason, or every property, have a column of their own."""


def show_plan(
    console: Console, plan: Plan, target: Target, *, nodes: int, everything: bool
) -> None:
    """Print a summary, what stays in float first; ``everything`` lists each decision."""
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
    title = f"stays in float, on {target.fallback}"
    show(console, reasons_table(plan.float_nodes, title, most=None if everything else _REASONS))
    show(console, _formats_table(plan))
    if not everything:
        console.print("--all lists every tensor and node, --output FILE writes the plan.")
        return
    show(console, nodes_table(plan.float_nodes))
    for heading, rows in _sections(plan):
        show(console, _decisions(heading, rows, wide=console.width >= _WIDE))


def _formats_table(plan: Plan) -> Table:
    """Return how many tensors become what."""
    table = make_table("quantized", "tensors", "kind", "format")
    table.columns[0].justify = "right"
    for heading, rows in _sections(plan):
        for form, count in Counter(row.format for row in rows).most_common():
            table.add_row(str(count), heading, form)
    return table


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
    """Print the presets by what they are for, each group with the one to start with."""
    names = ("name", "activation", "weight", "bias", "target", "summary")
    for purpose in PURPOSES:
        rows = [
            (p.name, *_formats(p), p.config.target, p.summary)
            for p in presets
            if p.config.target in purpose.targets
        ]
        if not rows:
            continue
        console.print(Text.assemble((purpose.title, "bold"), "\n", (purpose.advice, "green")))
        if console.width >= _WIDE:
            _show(console, "", names, rows)
        else:
            _show(console, "", (names[0], names[-1]), [(row[0], row[-1]) for row in rows])
    console.print("`lowbit presets --json` prints whole configurations, a start for --config.")


def show_targets(console: Console, targets: Sequence[Target]) -> None:
    """Print the targets, one a row."""
    names = ("name", "activation", "weight", "scales", "description")
    rows = [
        (
            target.name,
            " ".join(target.words_of(target.activation_formats)),
            " ".join(target.words_of(target.weight_formats)),
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
        heading = f"{last}; {' / '.join(between)}" if between else last
        table = make_table(title, first, heading)
        for name, *properties, summary in rows:
            details = Text(f"\n{' / '.join(properties)}" if properties else "", style="dim")
            table.add_row(name, Text.assemble(summary, details))
    table.columns[0].no_wrap = True
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


def show_timings(console: Console, timings: Sequence[Timing], *, threads: int, where: str) -> None:
    """Print how long each model takes, the first being what the others are compared with."""
    title = f"milliseconds a run on {where}, {threads or 'default'} threads"
    table = make_table(
        title, "model", "median", "95 % interval", "times as fast", "95 % interval", figures=4
    )
    for row in timings:
        is_first = row is timings[0]
        faster = "" if is_first else f"{row.ratio:.2f}"
        between = "" if is_first else f"{row.ratio_low:.2f} to {row.ratio_high:.2f}"
        spread = f"{row.low_ms:.3g} to {row.high_ms:.3g}"
        table.add_row(Name(row.model), f"{row.median_ms:.3g}", spread, faster, between)
    show(console, table)
    runs = counted(timings[0].runs, "run")
    console.print(f"{runs} of each, in turn; a median lies in its interval with 95 %.")
