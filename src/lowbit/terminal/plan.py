"""A plan as tables: what is quantized to what and why, and what stays in float."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from lowbit.config.specs import BiasSpec, TensorSpec
from lowbit.plan import Plan, TensorPlan
from lowbit.targets import Target
from lowbit.terminal.figures import counted
from lowbit.terminal.floats import nodes_table, reasons_table
from lowbit.terminal.layout import make_facts, make_table, show
from lowbit.terminal.names import Name


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
    show(console, facts)
    show(console, _activations(plan.activations()))
    show(console, _weights(plan.weights()))
    show(console, _biases(plan))
    title = f"stays in float, on {target.fallback}"
    show(console, reasons_table(plan.float_nodes, title))
    if everything:
        show(console, nodes_table(plan.float_nodes, "every node that stays in float"))


def describe_bias(spec: BiasSpec | None) -> str:
    """Return a few words for tables."""
    if spec is None:
        return "float"
    if isinstance(spec, TensorSpec):
        return spec.describe()
    return f"{spec.format.value} product"


def _activations(rows: Sequence[TensorPlan]) -> Table:
    table = make_table("activations", "tensor", "format", "shares with", "why")
    for row in rows:
        shares = "" if row.leader == row.name else row.leader
        why = row.why.split("; same numbers as ")[0]
        table.add_row(Name(row.name), _format(row), Name(shares), Name(why))
    return _kept_whole(table)


def _weights(rows: Sequence[TensorPlan]) -> Table:
    table = make_table("weights", "tensor", "format", "why")
    for row in rows:
        table.add_row(Name(row.name), _format(row), Name(row.why))
    return _kept_whole(table)


def _biases(plan: Plan) -> Table:
    table = make_table("biases", "tensor", "format", "why")
    for row in plan.biases:
        table.add_row(Name(row.tensor), describe_bias(row.spec), Name(row.why))
    return _kept_whole(table)


def _kept_whole(table: Table) -> Table:
    """Return the table with its formats never wrapped: the names give way. Changes ``table``."""
    table.columns[1].no_wrap = True
    return table


def _format(row: TensorPlan) -> str:
    if row.range is not None:
        low, high = row.range
        return f"{row.spec.describe()} {low:g}..{high:g}"
    return row.spec.describe()
