"""The result of a run and of a comparison, as compact tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from lowbit.errors import visible
from lowbit.evaluate.verdict import Verdict
from lowbit.report.tables import (
    Name,
    below,
    cosine,
    counted,
    decibels,
    make_facts,
    make_table,
    number,
    reasons_table,
    seconds,
    show,
    show_notes,
    size,
)
from lowbit.report.values import (
    Budget,
    GoalOutcome,
    PromotedRegion,
    Promotion,
    Report,
    Score,
    Step,
    SuggestedFix,
)
from lowbit.scales.parameters import Adjustment

_SHOWN = 8
# Noise that is no listed tensor's, as a share of all, from which on it is spoken of.
_MUCH = 0.05


def show_budget(console: Console, budget: Budget) -> None:
    """Print the tensors that add most to the error, why, and what was tried on them."""
    show(console, _rows(budget))
    show(console, _suggested_fixes(budget))
    if useless := _useless(budget):
        console.print(Text(visible(useless), style="dim"))
        console.print()
    console.print(Text(_how(budget), style="dim"))
    for tried in budget.tried_together:
        console.print(_promotion(budget, tried))
        if tried.gain_db > 0 or tried.requantized_sqnr_db is not None:
            _print_json(console, tried.config)
    _show_configurations(console, budget)
    console.print()


def _print_json(console: Console, line: str) -> None:
    """Print a line to be copied: never broken, however narrow the terminal."""
    console.print(Text(f"  {line}", style="dim"), soft_wrap=True)


def _show_configurations(console: Console, budget: Budget) -> None:
    """Print how to ask for each suggested fix that helps."""
    for index, (_, fix) in enumerate(_fixes(budget), 1):
        console.print(f"fix {index}, as --config or as an option:")
        _print_json(console, fix.config)


def _rows(budget: Budget) -> Table:
    title = f"error budget, on {counted(budget.samples, 'sample')} at {decibels(budget.sqnr_db)} dB"
    table = make_table(
        title, "tensor, and why", "own SQNR", "sensitivity", "if in float", figures=3
    )
    rows = budget.rows[:_SHOWN]
    names = [f"{row.tensor} ({row.format})" for row in rows]
    for name, row in zip(names, rows, strict=True):
        lines: list[RenderableType] = [Name(name, among=names)]
        lines += [Name(f"  weight of {row.node}", style="dim")] if row.node else []
        lines += [below(f"{c.name}: {c.detail}") for c in row.causes]
        # Not "-0.0%": rounded first, and no negative zero.
        change = "" if row.recovered is None else f"{0.0 + round(-row.recovered, 3):+.1%}"
        sensitivity = f"{row.sensitivity:.1%}" if row.samples else f"~{row.sensitivity:.1%}"
        table.add_row(Group(*lines), decibels(row.own_sqnr_db), sensitivity, change)
    return table


def _suggested_fixes(budget: Budget) -> Table:
    table = make_table(
        "suggested fixes, tried one at a time", "", "tensor", "fix", "gain dB", figures=1
    )
    fixes = _fixes(budget)
    names = [tensor for tensor, _ in fixes]
    for index, (tensor, fix) in enumerate(fixes, 1):
        name = Name(tensor, among=names)
        table.add_row(str(index), name, fix.what, f"{fix.gain_db:+.2f}")
    return table


def _fixes(budget: Budget) -> list[tuple[str, SuggestedFix]]:
    """Return the tensors and fixes that help."""
    return [(tensor, fix) for tensor, fix in _tried(budget) if fix.gain_db > 0]


def _tried(budget: Budget) -> list[tuple[str, SuggestedFix]]:
    return [(row.tensor, fix) for row in budget.rows[:_SHOWN] for fix in row.suggested_fixes]


def _useless(budget: Budget) -> str:
    """Return what was tried and does not help."""
    useless = (row for row in _tried(budget) if row[1].gain_db <= 0)
    found = [f"{tensor}: {fix.what} ({fix.gain_db:+.2f} dB)" for tensor, fix in useless]
    return f"tried without gain: {', '.join(found)}" if found else ""


def _how(budget: Budget) -> str:
    again = sum(row.samples > 1 for row in budget.rows)
    return (
        f"sensitivity: noise of the outputs with only this tensor quantized, as a share of all noise; if in "
        f"float: how the noise changes with this tensor in float. {budget.measured} tensors are "
        f"measured ({again} of them on {counted(budget.samples, 'sample')}, the others on one), "
        f"{budget.estimated} estimated."
    )


def _promotion(budget: Budget, promotion: Promotion) -> Text:
    return Text.assemble(
        (f"{promotion.words}, measured together: ", "bold"),
        f"{decibels(budget.sqnr_db)} -> {decibels(promotion.sqnr_db)} dB, ",
        f"{promotion.noise_recovered:.0%} of the noise recovered{_of_known(budget, promotion)}"
        if promotion.gain_db > 0
        else "no help",
        _requantized(promotion),
    )


def _of_known(budget: Budget, promotion: Promotion) -> str:
    """Return the share recovered of what can be told apart, where there is much that cannot."""
    noise = [10 ** (-db / 10) for db in (budget.sqnr_db, promotion.sqnr_db, budget.float_sqnr_db)]
    now, after, rest = noise
    if rest < _MUCH * now or rest >= now:
        return ""
    return f", {(now - after) / (now - rest):.0%} of what the tensors listed here add"


def _requantized(promotion: Promotion) -> str:
    if promotion.requantized_sqnr_db is None:
        return ""
    return f"\nquantized again with it: {decibels(promotion.requantized_sqnr_db)} dB"


_FEW = 5


def show_result(console: Console, report: Report, output: str) -> None:
    """Print what was done, how good it is and what it took."""
    facts = make_facts()
    facts.add_row("preset", f"{report.preset} for {report.target}")
    facts.add_row("output", Name(output))
    facts.add_row("quantized", _listed(report.quantized))
    if report.calibration_samples:
        facts.add_row("calibrated", f"on {counted(report.calibration_samples, 'sample')}")
    if report.verification_samples:
        verified = f"on {counted(report.verification_samples, 'sample')}{_held(report)}"
        facts.add_row("verified", verified)
    facts.add_row("data", report.data)
    facts.add_row("constants", _sizes(report))
    facts.add_row("time", _times(report.seconds))
    show(console, facts)
    nodes = counted(len(report.float_nodes), "node stays", "nodes stay")
    show(console, reasons_table(report.float_nodes, f"{nodes} in float", most=_FEW))
    show(console, _steps(report.steps))
    show(console, _adjustments(report.adjustments))
    show(console, _promoted(report.promoted))
    if report.goal is not None:
        show_goal(console, report.goal)
    _show_scores(console, report)
    show_notes(console, report.notes)
    show_verdict(console, report)
    show_notes(console, report.doubts)


def show_verdict(console: Console, report: Report) -> None:
    """Print how good the model is, each output, and the number that decides."""
    verdict = report.verdict
    if verdict is None and not report.verification_samples:
        return
    if verdict is None:
        console.print(Text("verdict: none, no output can be compared with float", style="yellow"))
        return
    if len(verdict.outputs) > 1:
        table = make_table("verdict by output", "output", "figure", "level")
        for row in verdict.outputs:
            words = row.describe().removeprefix(f"{row.output}: ")
            table.add_row(Name(row.output), words, _level(row.level))
        show(console, table)
    console.print(describe_verdict(verdict))


def describe_verdict(verdict: Verdict) -> Text:
    """Return the level in its colour, and the number it rests on."""
    colour = LEVEL_COLOURS[verdict.level]
    return Text.assemble(("verdict: ", "bold"), (verdict.level, colour), f" ({verdict.describe()})")


def _level(level: str) -> Text:
    return Text(level, style=LEVEL_COLOURS.get(level, ""))


LEVEL_COLOURS = {
    "good": "bold green",
    "usable": "green",
    "poor": "bold yellow",
    "ruined": "bold red",
}


def show_goal(console: Console, goal: GoalOutcome) -> None:
    """Print all that was tried for a goal, what it cost, and whether the goal is met."""
    title = f"tried for {goal.goal}, on {counted(goal.search_samples, 'sample')} of the search"
    table = make_table(title, "what", goal.figure, "margin dB", "time", "", figures=3)
    for row in goal.trials:
        name: list[RenderableType] = [Text(visible(f"{row.strategy}: {row.what}"))]
        name += [below(row.note)] if row.note else []
        figures = (
            "" if row.value is None else number(row.value),
            "" if row.margin_db is None else decibels(row.margin_db),
        )
        table.add_row(Group(*name), *figures, seconds(row.seconds), row.outcome)
    show(console, table)
    console.print(describe_goal(goal))


def describe_goal(goal: GoalOutcome) -> Text:
    """Return whether a goal is met, in its colour, and how sure that is."""
    word, colour = ("met", "bold green") if goal.met else ("missed", "bold red")
    return Text.assemble(
        ("goal: ", "bold"), f"{goal.goal} ", (word, colour), f" ({goal.describe()})"
    )


def _promoted(regions: Sequence[PromotedRegion]) -> Table:
    title = f"promoted, because {regions[0].why}" if regions else ""
    table = make_table(title, "nodes", "format", "multiply-adds", "numbers written", figures=3)
    for row in regions:
        where = row.first if row.nodes == 1 else f"{row.first} .. {row.last} ({row.nodes})"
        shares = (f"{row.multiply_adds:.1%}", f"{row.elements:.1%}")
        table.add_row(Group(Name(where), Name(f"  {row.why}", style="dim")), row.format, *shares)
    return table


def show_comparison(console: Console, report: Report) -> None:
    """Print how close two models are."""
    facts = make_facts()
    facts.add_row("preset", f"{report.preset} for {report.target}")
    facts.add_row("compared", f"on {counted(report.verification_samples, 'sample')}")
    facts.add_row("data", report.data)
    facts.add_row("constants", _sizes(report))
    facts.add_row("time", _times(report.seconds))
    show_verdict(console, report)
    show_notes(console, report.doubts)
    console.print()
    show(console, facts)
    show(console, _accuracy(report))
    if report.accuracy:
        console.print(_needed(report))
    _show_scores(console, report)
    if report.latency is not None:
        console.print(Text(report.latency.verdict, style="bold"))
        console.print()
    if report.budget is not None:
        show_budget(console, report.budget)
    show_notes(console, report.notes)


def show_models(console: Console, reports: Mapping[str, Report], page: str = "") -> None:
    """Print how close several models are to one float model, a row each, and where there is more."""
    first = next(iter(reports.values()))
    title = f"compared on {counted(first.verification_samples, 'sample')}"
    table = make_table(
        title, "model", "preset", "verdict", "accuracy", "constants", "SQNR dB", figures=2
    )
    for name, report in reports.items():
        accuracy = ", ".join(f"{r.name} {r.quantized_score:.2f}" for r in report.accuracy)
        level = "" if report.verdict is None else report.verdict.level
        figures = (size(report.size_after), decibels(report.worst_slice_db))
        table.add_row(Name(name), report.preset, _level(level), accuracy, *figures)
    show(console, table)
    where = page or "--report page.html"
    console.print(Text(f"{where} shows them side by side, tensor by tensor."))


def _show_scores(console: Console, report: Report) -> None:
    show(console, _scores("outputs, against the float model", report.outputs))
    show(console, _scores("slices of outputs", report.slices))
    show(console, _scores(f"outputs through fused kernels of {report.runtime}", report.fused))
    show(console, sources_table(report, _FEW))
    show(console, _scores("worst layers", report.worst_layers(_FEW)))


def _accuracy(report: Report) -> Table:
    table = make_table(
        "accuracy", "figure", "float", "quantized", "fused", "gap", "95 % interval", figures=5
    )
    for row in report.accuracy:
        fused = "" if row.fused_score is None else f"{row.fused_score:.2f}"
        scores = (f"{row.float_score:.2f}", f"{row.quantized_score:.2f}", fused)
        between = f"{row.low:.2f} to {row.high:.2f}"
        table.add_row(f"{row.name} {row.unit}", *scores, f"{row.gap:.2f}", between)
    return table


def _needed(report: Report) -> Text:
    parts = [
        f"{row.name} {row.samples_needed} samples for {row.tolerance:g} {row.unit}".rstrip()
        for row in report.accuracy
    ]
    return Text(
        f"for a narrower interval than on {report.verification_samples} samples: {', '.join(parts)}\n"
    )


def _scores(title: str, scores: Sequence[Score]) -> Table:
    table = make_table(title, "tensor", "SQNR dB", "cosine", "max error", figures=3)
    names = [score.tensor for score in scores]
    for score in scores:
        table.add_row(
            Name(score.tensor, among=names),
            decibels(score.sqnr_db),
            cosine(score.cosine),
            number(score.max_error),
        )
    return table


def sources_table(report: Report, most: int) -> Table:
    """Return the layers that add most error, with the SQNR before and after each."""
    table = make_table("the error arises at", "tensor", "SQNR from", "to dB", figures=2)
    scores = report.error_sources(most)
    names = [score.tensor for score in scores]
    for score in scores:
        before = math.nan if score.upstream_db is None else score.upstream_db
        name = Name(score.tensor, among=names)
        table.add_row(name, decibels(before), decibels(score.sqnr_db))
    return table


def _adjustments(moved: Sequence[Adjustment]) -> Table:
    title = f"{counted(len(moved), 'scale')} moved by the target's constraints"
    if len(moved) > _FEW:
        title += f", the {_FEW} costliest"
    table = make_table(title, "tensor, and why", "from", "to", "cost dB", figures=3)
    for row in sorted(moved, key=_cost, reverse=True)[:_FEW]:
        cost = "" if row.cost_db is None else f"{row.cost_db:.2f}"
        reason = Group(Name(row.tensor), Name(f"  {row.why}", style="dim"))
        table.add_row(reason, number(row.before), number(row.after), cost)
    return table


def _steps(steps: Sequence[Step]) -> Table:
    """Return what was tried on held-out samples, and whether it was kept."""
    title = "steps tried on held-out samples: error relative to the outputs' power"
    table = make_table(title, "step", "before", "after", "kept", figures=3)
    for step in steps:
        name = Group(Name(step.name), Name(f"  {step.note}", style="dim"))
        table.add_row(
            name, number(step.before), number(step.after), "kept" if step.kept else "dropped"
        )
    return table


def _cost(moved: Adjustment) -> float:
    return -math.inf if moved.cost_db is None else moved.cost_db


def _listed(counts: dict[str, int]) -> str:
    """Return one line a kind of tensor: ``53 activation int8 sym mse``."""
    width = max((len(str(count)) for count in counts.values()), default=0)
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])
    return "\n".join(f"{count:>{width}} x {kind}" for kind, count in ranked) or "nothing"


def _held(report: Report) -> str:
    return " held out of calibration" if report.held_out else ", also calibrated on"


def _sizes(report: Report) -> str:
    ratio = report.size_before / report.size_after if report.size_after else math.nan
    change = f" ({ratio:.2f} times smaller)" if ratio > 1 else ""
    return f"{size(report.size_before)} -> {size(report.size_after)}{change}"


def _times(stages: dict[str, float]) -> str:
    parts = ", ".join(f"{name} {seconds(value)}" for name, value in stages.items() if value > 0.005)
    return f"{seconds(sum(stages.values()))}" + (f" ({parts})" if len(stages) > 1 else "")
