"""What lowbit wants to reach, and whether these results do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.figures import beside, calibration_ratio, memory_above_float
from bench.jobs import JOBS, LOWBIT
from bench.markdown import times
from bench.subjects import EXAMPLE

Results = Mapping[str, Any]


def target_rows(results: Results) -> list[list[str]]:
    """Return one row for each target that these results say something about."""
    runs = results["runs"]
    rows: list[list[str]] = []
    # The bundled example is so small that starting a session outweighs its float pass.
    for model in dict.fromkeys(r["model"] for r in runs if r["model"] != EXAMPLE):
        rows += _of_model(runs, model)
    return [*rows, *_flat(results), *_large(results)]


def _of_model(runs: Sequence[Mapping[str, Any]], model: str) -> Iterable[list[str]]:
    for job, most in (("a8w8-minmax", 1.5), ("a8w8-percentile", 3.0), ("xint8", 3.0)):
        ratio = calibration_ratio(runs, model, job)
        if ratio is not None:
            title = f"{model}: calibration, {JOBS[job].title}, in float passes"
            yield [title, f"<= {most:g}x", times(ratio), _met(ratio <= most)]
    faster = (
        ("native-a8w8-calibrated", 5.0),
        ("native-xint8-calibrated", 10.0),
        ("native-xint8", 1.0),
    )
    for job, least in faster:
        ratio = beside(runs, model, JOBS[job], "quark", "wall")
        if ratio is not None:
            title = f"{model}: {JOBS[job].title}, faster than Quark's {JOBS[JOBS[job].like].title}"
            yield [title, f">= {least:g}x", times(ratio), _met(ratio >= least)]
    for kind, refined in (("by calibration alone", False), ("with refinement", True)):
        jobs = [job.name for job in JOBS.values() if job.refines == refined]
        above = [memory_above_float(runs, model, job) for job in jobs]
        worst = max((value for value in above if value is not None), default=None)
        if worst is not None:
            title = f"{model}: memory above the float session's own, worst job {kind}"
            yield [title, "< 150 MB", f"{worst:.0f} MB", _met(worst < 150)]


def _flat(results: Results) -> Iterable[list[str]]:
    own = [
        r
        for r in results.get("growth", ())
        if (r["axis"], r["job"], r["tool"]) == ("samples", "native-xint8", LOWBIT)
        and not r["error"]
    ]
    if len(own) > 1:
        few, many = (pick(own, key=lambda r: r["value"]) for pick in (min, max))
        more = many["peak_mb"] - few["peak_mb"]
        title = f"memory flat in samples: {many['value']} beside {few['value']}"
        yield [title, "< 20 MB more", f"{more:+.0f} MB", _met(more < 20)]


def _large(results: Results) -> Iterable[list[str]]:
    large = results.get("large", {})
    for preset, stages in large.get("presets", {}).items():
        seconds = sum(stages[stage]["cpu"] for stage in ("plan", "resolve", "round", "emit"))
        title = f"{large['nodes']:,} nodes planned, resolved and emitted, {preset}, CPU seconds"
        planned = sum(stages[stage]["cpu"] for stage in ("plan", "emit"))
        yield [
            title.replace("planned, resolved and emitted", "planned and emitted"),
            "< 5 s",
            f"{planned:.1f} s ({seconds:.1f} s with resolving)",
            _met(planned < 5),
        ]


def _met(yes: bool) -> str:  # noqa: FBT001
    return "yes" if yes else "**no**"
