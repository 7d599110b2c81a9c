"""A plan as tables: what is quantized to what and why, and what stays in float."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from rich.console import Console, Group
from rich.table import Table

from lowbit.config.specs import BiasSpec, ProductBias
from lowbit.planning import Plan, TensorPlan
from lowbit.report.tables import (
    Name,
    counted,
    make_facts,
    make_table,
    nodes_table,
    reasons_table,
    show,
)
from lowbit.targets import Target

_WIDE = 132
"""Columns from which on a tensor and its reason fit into one line."""


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


def describe_bias(spec: BiasSpec | None) -> str:
    """Return a few words for tables."""
    if spec is None:
        return "float"
    if isinstance(spec, ProductBias):
        return f"{spec.format.value} product"
    return spec.describe()


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
    yield "biases", [_Row(b.tensor, describe_bias(b.spec), "", b.why) for b in plan.biases]


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
