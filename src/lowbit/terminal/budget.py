"""Where the error of the outputs comes from, and what would mend it."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowbit.terminal.figures import counted, decibels
from lowbit.terminal.layout import make_table, show
from lowbit.terminal.names import Name
from lowbit.verify.findings import Budget, Together

_SHOWN = 8
# Noise that is no listed tensor's, as a share of all, from which on it is spoken of.
_MUCH = 0.05


def show_budget(console: Console, budget: Budget) -> None:
    """Print the tensors that add most to the error, why, and what was tried on them."""
    show(console, _rows(budget))
    show(console, _mends(budget))
    console.print(Text(_how(budget), style="dim"))
    if budget.together is not None:
        console.print(_together(budget))
    console.print()


def _rows(budget: Budget) -> Table:
    title = f"error budget, on {counted(budget.samples, 'sample')} at {decibels(budget.snr_db)} dB"
    table = make_table(title, "tensor, and why", "own dB", "alone", "left out", figures=3)
    for row in budget.rows[:_SHOWN]:
        lines: list[RenderableType] = [Name(f"{row.tensor} ({row.format})")]
        lines += [Text(f"  {c.name}: {c.detail}", style="dim") for c in row.causes]
        kept = "" if row.kept is None else f"{-row.kept:+.1%}"
        alone = f"{row.alone:.1%}" if row.samples else f"~{row.alone:.1%}"
        table.add_row(Group(*lines), decibels(row.own_snr_db), alone, kept)
    return table


def _mends(budget: Budget) -> Table:
    table = make_table(
        "tried on them, one at a time", "change, and how to ask for it", "dB", figures=1
    )
    for row in budget.rows[:_SHOWN]:
        for mend in row.mends:
            what = Name(f"{row.tensor}: {mend.what}")
            table.add_row(
                Group(what, Text(f"  {mend.config}", style="dim", overflow="fold")),
                f"{mend.gain_db:+.2f}",
            )
    return table


def _how(budget: Budget) -> str:
    again = sum(row.samples > 1 for row in budget.rows)
    return (
        f"alone: noise of the outputs with only this tensor quantized, as a share of all; left out: "
        f"what becomes of the noise with this tensor in float. {budget.measured} tensors are "
        f"measured ({again} of them on {counted(budget.samples, 'sample')}, the others on one), "
        f"{budget.estimated} estimated."
    )


def _together(budget: Budget) -> Text:
    together = budget.together
    if together is None:
        return Text()
    count = counted(len(together.tensors), "worst tensor")
    return Text.assemble(
        (f"the {count} at 16 bits, measured together: ", "bold"),
        f"{decibels(budget.snr_db)} -> {decibels(together.snr_db)} dB, "
        f"{together.noise_won_back:.0%} of the noise won back{_of_known(budget)}\n",
        _retried(together),
        (f"  {together.config}", "dim"),
    )


def _of_known(budget: Budget) -> str:
    """Return the share won back of what can be told apart, where there is much that cannot."""
    if budget.together is None:
        return ""
    noise = [
        10 ** (-db / 10) for db in (budget.snr_db, budget.together.snr_db, budget.float_snr_db)
    ]
    now, after, rest = noise
    if rest < _MUCH * now or rest >= now:
        return ""
    return f", {(now - after) / (now - rest):.0%} of what the tensors listed here add"


def _retried(together: Together) -> str:
    if together.retried_snr_db is None:
        return ""
    return f"quantized again with them at 16 bits: {decibels(together.retried_snr_db)} dB\n"
