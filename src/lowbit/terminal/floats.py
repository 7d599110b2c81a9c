"""Nodes that stay in float, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.table import Table

from lowbit.terminal.layout import make_table
from lowbit.terminal.names import Name


class InFloat(Protocol):
    """What a plan's and a report's rows have in common."""

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
        table.add_row(str(left), f"{len(counts) - len(ranked)} more reasons (--json lists all)", "")
    return table


def nodes_table(nodes: Sequence[InFloat], title: str) -> Table:
    """Return every node that stays in float, with its reason."""
    table = make_table(title, "node", "operator", "why")
    for node in nodes:
        table.add_row(Name(node.node), node.op_type, Name(node.why))
    return table


def _listed(words: Iterable[str], most: int = 4) -> str:
    ranked = Counter(words).most_common()
    shown = [word if count == 1 else f"{word} x{count}" for word, count in ranked[:most]]
    return ", ".join([*shown, *(["..."] if len(ranked) > most else [])])
