"""The result of a run on one screen: how good it is, what was done, where the error is, what next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from lowbit.report.result import describe_goal, describe_verdict, sources_table
from lowbit.report.tables import (
    Name,
    Sentence,
    counted,
    decibels,
    describe_note,
    make_facts,
    seconds,
    shorten,
    size,
)
from lowbit.report.values import GoalOutcome, PromotedRegion, Report, Score, Step

MOST_LINES = 25
_OUTPUTS, _SOURCES, _WIDEST_NAME = 2, 3, 30


def show_summary(console: Console, report: Report, output: str, next_step: str = "") -> None:
    """Print at most ``MOST_LINES`` lines; ``lowbit quantize --verbose`` prints the rest."""
    parts: list[RenderableType] = [*_verdict(report), _facts(report, output)]
    last = [Text(""), Text(f"next: {next_step}", style="bold")] if next_step else []
    room = MOST_LINES - sum(_lines(console, part) for part in (*parts, *last))
    sources = sources_table(report, _SOURCES)
    if sources.row_count and _lines(console, sources) < room:
        parts += [Text(""), sources]
        room -= _lines(console, sources) + 1
    for part in (*parts, *_notes(console, (*report.notes, *_kernels(report)), room), *last):
        console.print(part)


def _kernels(report: Report) -> tuple[str, ...]:
    """Return whether the model can saturate, where it is for kernels that might."""
    if report.saturation is None or report.speed:
        return ()
    return (report.saturation.describe(),)


def _lines(console: Console, part: RenderableType) -> int:
    return len(console.render_lines(part))


def _verdict(report: Report) -> Iterator[RenderableType]:
    if report.verdict is not None:
        yield describe_verdict(report.verdict)
    if report.goal is not None:
        yield describe_goal(report.goal)
    yield from map(describe_note, report.doubts)
    if report.verdict is not None or report.goal is not None or report.doubts:
        yield Text("")


def _facts(report: Report, output: str) -> RenderableType:
    facts = make_facts()
    facts.add_row(
        "wrote", Name(f"{output} ({size(report.size_after)} of constants{_ratio(report)})")
    )
    slow = f" ({report.speed})" if report.speed else ""
    facts.add_row("preset", Name(f"{report.preset} for {report.target}{slow}"))
    for label, score in _worst_outputs(report):
        facts.add_row(label, Name(_score(score)))
    source, _, preprocessing = report.data.partition(", ")
    facts.add_row("data", Sentence(source))
    if preprocessing:
        facts.add_row("inputs", Sentence(preprocessing))
    facts.add_row("samples", Sentence(_samples(report)))
    facts.add_row("quantized", Sentence(_kinds(report.quantized)))
    facts.add_row("in float", Sentence(_in_float(report)))
    if report.promoted:
        facts.add_row("promoted", Sentence(_promoted(report.promoted)))
    if report.goal is not None:
        facts.add_row("tried", Sentence(_trail(report.goal)))
    if report.steps:
        facts.add_row("steps", Sentence(_steps(report.steps)))
    facts.add_row("time", Name(_time(report.seconds)))
    return facts


def _ratio(report: Report) -> str:
    """Return how much smaller the constants are; of a small model with many scales also how much larger."""
    if not report.size_before or not report.size_after:
        return ""
    smaller = report.size_before / report.size_after
    word = "smaller" if smaller >= 1 else "larger"
    return f", {max(smaller, 1 / smaller):.1f} times {word}"


def _worst_outputs(report: Report) -> Iterator[tuple[str, Score]]:
    ranked = sorted(report.slices or report.outputs, key=lambda score: score.sqnr_db)
    for index, score in enumerate(ranked[:_OUTPUTS]):
        yield ("SQNR" if index == 0 else ""), score


def _samples(report: Report) -> str:
    """Return what the samples were for."""
    verified = report.verification_samples
    if not report.calibration_samples:
        return f"{verified} to verify, none needed to calibrate" if verified else "none"
    earlier = " (saved statistics)" if report.reused_statistics else ""
    calibrated = f"{report.calibration_samples} to calibrate{earlier}"
    if not verified:
        return calibrated
    same = "" if report.reused_statistics else " of the same"
    return f"{calibrated}, {verified}{' others' if report.held_out else same} to verify"


def _promoted(regions: Sequence[PromotedRegion]) -> str:
    """Return the share of the model's work that was promoted, by format, and where the most of it is."""
    formats: dict[str, float] = {}
    for region in regions:
        formats[region.format] = formats.get(region.format, 0.0) + region.multiply_adds
    shares = ", ".join(f"{share:.0%} to {name}" for name, share in formats.items())
    largest = max(regions, key=lambda region: region.multiply_adds)
    ends = dict.fromkeys((largest.first, largest.last))
    where = " .. ".join(shorten(name, _WIDEST_NAME) for name in ends)
    many = f" in {len(regions)} regions, the largest" if len(regions) > 1 else ","
    nodes = counted(sum(region.nodes for region in regions), "node")
    return f"{shares} of the multiply-adds: {nodes}{many} {where}"


def _score(score: Score) -> str:
    unit = " dB" if decibels(score.sqnr_db)[0].isdigit() else ""
    return f"{decibels(score.sqnr_db)}{unit}, cosine {score.cosine:.5f} ({score.tensor})"


def _kinds(counts: Mapping[str, int]) -> str:
    ranked = sorted(counts.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{count} x {kind}" for kind, count in ranked) or "nothing"


def _in_float(report: Report) -> str:
    if not report.float_nodes:
        return "nothing"
    (why, count), *others = Counter(node.why for node in report.float_nodes).most_common()
    more = f"; {counted(len(others), 'other reason')}" if others else ""
    operators = Counter(node.op_type for node in report.float_nodes if node.why == why)
    names = ", ".join(name for name, _ in operators.most_common(3))
    whole = counted(len(report.float_nodes), "node")
    part = f", {count} of them" if others else ""
    return f"{whole}{part} ({names}): {why}{more}"


def _steps(steps: Sequence[Step]) -> str:
    return ", ".join(f"{step.name} {'kept' if step.kept else 'dropped'}" for step in steps)


def _trail(goal: GoalOutcome) -> str:
    """Return what was kept of all that was tried, and what the search cost."""
    tried = [row for row in goal.trials if row.value is not None]
    kept = ", ".join(f"{row.strategy}: {row.what}" for row in tried if row.outcome != "dropped")
    return f"{counted(len(tried), 'candidate')} in {seconds(goal.seconds)}; kept {kept}"


def _time(stages: Mapping[str, float]) -> str:
    longest = sorted(stages.items(), key=lambda pair: -pair[1])[:3]
    parts = ", ".join(f"{name} {seconds(value)}" for name, value in longest)
    return f"{seconds(sum(stages.values()))} ({parts})"


def _notes(console: Console, notes: Sequence[str], room: int) -> Iterator[RenderableType]:
    """Yield the notes that there is room for, and how many more there are."""
    shown = [describe_note(note) for note in notes]
    for index, note in enumerate(shown):
        left = len(shown) - index
        # The line that counts the rest needs room as well.
        needed = _lines(console, note) + (left > 1)
        if needed > room:
            if room > 0:
                yield Text(f"{counted(left, 'note')} more with --verbose", style="dim")
            return
        room -= _lines(console, note)
        yield note
