"""RESULTS.md, from results.json alone: ratios first, then raw figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.figures import (
    calibration_ratio,
    failure,
    least,
    memory_above_float,
    of,
    relative_to,
    whole_ratio,
)
from bench.growth import images
from bench.jobs import JOBS, LOWBIT, RIVALS, TITLES, Job
from bench.markdown import number, table, times
from bench.rounds import FLOAT
from bench.targets import target_rows

Results = Mapping[str, Any]
_PHASES = tuple(
    "import load normalize validate transform prepare plan calibrate sensitivity solve search refine emit verify save".split()
)


def render(results: Results) -> str:
    """Return the whole page."""
    runs = results["runs"]
    models = list(dict.fromkeys(r["model"] for r in runs))
    parts = [_HEAD, _conditions(results), "## Targets\n\n" + _targets(results)]
    for model in models:
        jobs = [
            JOBS[n] for n in JOBS if of(runs, model, n, LOWBIT) or failure(runs, model, n, LOWBIT)
        ]
        parts += [f"## {model}\n", _sizes(results, model)]
        parts += [
            f"### {title}\n\n{_ratios(runs, model, jobs, key)}"
            for key, title in (
                ("wall", "Time of the whole process, rival to lowbit (above 1: lowbit is faster)"),
                ("cpu", "CPU time, rival to lowbit"),
                ("peak_mb", "Peak memory of the process tree, rival to lowbit"),
            )
        ]
        parts += [
            "### Accuracy with exact integer arithmetic\n\n" + _scores(results, model, jobs),
            "### Phases of lowbit, seconds (CPU seconds)\n\n" + _phases(runs, model, jobs),
            "### Raw figures: seconds, CPU seconds, peak MB, file MB\n\n" + _raw(runs, model, jobs),
        ]
        parts += _failures(results, model)
    parts += [_growth(results), _large(results)]
    return "\n".join(part for part in parts if part)


_HEAD = """# Results

Written by `python -m bench` from `bench/results.json`; do not edit. How to run it: `bench/README.md`.
Every run is a fresh process, import included, on the same files and threads; tools take turns. A ratio is taken within a
round and its median over rounds is shown; raw figures are the least over rounds. A float pass is one plain
onnxruntime pass over the same samples, files read, session already made. Jobs by AMD Quark's presets give Quark's numbers in
lowbit; "lowbit's own" presets are compared with the nearest job that rivals have.
"""


def _conditions(results: Results) -> str:
    lines = [f"- {key}: {value}" for key, value in results["machine"].items()]
    loads = [r["load"] for r in results["runs"]] or [0.0]
    cores = int(results["machine"]["cores"])
    shared = f"load average {min(loads):.1f} to {max(loads):.1f} on {cores} cores"
    # A run at work keeps as many cores busy as it has threads, and no more.
    if max(loads) > cores + 0.5:
        shared += ": others used the machine at the same time, so trust ratios and CPU seconds"
    versions = {k: v for r in results["runs"] for k, v in r["versions"].items()}
    lines += [f"- {shared}", "- " + ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))]
    lines += [f"- {note}" for note in results.get("notes", ())]
    return "\n".join(lines) + "\n"


def _targets(results: Results) -> str:
    return table(["target", "wanted", "measured", "met"], target_rows(results))


def _sizes(results: Results, model: str) -> str:
    runs = [r for r in results["runs"] if r["model"] == model]
    scores = [s for s in results["scores"] if s["model"] == model and s["images"]]
    rounds = 1 + max(r["round"] for r in runs)
    judged = f"; accuracy on {scores[0]['images']} samples" if scores else ""
    passes = least(of(runs, model, FLOAT, FLOAT), "pass_seconds")
    return (
        f"{runs[0]['samples']} samples, {rounds} round{'s' if rounds > 1 else ''}{judged}. "
        f"Float pass: {number(passes, 3)} s.\n"
    )


def _ratios(runs: Sequence[Mapping[str, Any]], model: str, jobs: Iterable[Job], key: str) -> str:
    unit = {"wall": "s", "cpu": "s", "peak_mb": "MB"}[key]
    head = ["job", f"lowbit, {unit}"]
    if key == "wall":
        head += ["in float passes", "calibration in float passes"]
    rows = []
    for job in jobs:
        mine = least(of(runs, model, job.name, LOWBIT), key)
        row = [job.title, number(mine, 0 if key == "peak_mb" else 2)]
        if key == "wall":
            row += [
                times(whole_ratio(runs, model, job.name, LOWBIT)),
                times(calibration_ratio(runs, model, job.name)),
            ]
        rows.append(row + [times(relative_to(runs, model, job, rival, key)) for rival in RIVALS])
    return table([*head, *(TITLES[r] for r in RIVALS)], rows)


def _scores(results: Results, model: str, jobs: Iterable[Job]) -> str:
    found = {(s["job"], s["tool"]): s for s in results["scores"] if s["model"] == model}
    if (FLOAT, LOWBIT) not in found:
        return "Not measured.\n"
    rows = []
    for job in jobs:
        cells = [_score(found.get((job.name, tool))) for tool in (LOWBIT, *RIVALS)]
        rows.append([job.title, *cells])
    floats = found[FLOAT, LOWBIT]
    metric = floats["metric"]
    gap = "its gap to float with the standard error of that gap (same images), KL divergence from float"
    others = gap if floats["kl"] is not None else "its gap to float"
    note = f"Float: {metric} {floats['score']:.1f}. Cells: {metric}, {others}, SQNR of the outputs.\n\n"
    return note + table(["job", *(TITLES[t] for t in (LOWBIT, *RIVALS))], rows)


def _score(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return "-"
    if score["error"]:
        return "does not run"
    error = f" ± {score['gap_error']:.1f}" if score["gap_error"] is not None else ""
    text = f"{score['score']:.1f} ({score['gap']:+.1f}{error})"
    text += f", {score['kl']:.4f}" if score["kl"] is not None else ""
    return text + (f", {score['sqnr_db']:.1f} dB" if score["sqnr_db"] is not None else "")


def _phases(runs: Sequence[Mapping[str, Any]], model: str, jobs: Iterable[Job]) -> str:
    rows = []
    for job in jobs:
        own = of(runs, model, job.name, LOWBIT)
        if own:
            best = min(own, key=lambda r: r["wall"])
            cells = [
                f"{best['phases'][p]:.2f} ({best['phases_cpu'][p]:.2f})"
                if p in best["phases"]
                else "-"
                for p in _PHASES
            ]
            rows.append([job.title, *cells])
    return table(["job", *_PHASES], rows)


def _raw(runs: Sequence[Mapping[str, Any]], model: str, jobs: Iterable[Job]) -> str:
    rows = []
    for job in jobs:
        for tool in (LOWBIT, *RIVALS):
            own = of(runs, model, job.name, tool)
            if own:
                figures = [number(least(own, key), 2) for key in ("wall", "cpu")]
                peak, size = number(least(own, "peak_mb"), 0), number(own[0]["bytes"] / 1e6, 2)
                rows.append([job.title, TITLES[tool], *figures, peak, size])
    above = [memory_above_float(runs, model, job.name) for job in jobs]
    worst = max((value for value in above if value is not None), default=None)
    floor = least(of(runs, model, FLOAT, FLOAT), "peak_mb")
    note = (
        f"\nA process that only runs the float model peaks at {number(floor, 0)} MB; "
        f"lowbit's jobs at up to {number(worst, 0)} MB more.\n"
    )
    return table(["job", "tool", "s", "CPU s", "peak MB", "file MB"], rows) + note


def _failures(results: Results, model: str) -> list[str]:
    failed = {
        (r["job"], r["tool"]): r["error"]
        for r in (*results["runs"], *results["scores"])
        if r["model"] == model and r["error"]
    }
    lines = [f"- {TITLES[tool]}, {job}: `{error[:200]}`" for (job, tool), error in failed.items()]
    return ["### What failed\n\n" + "\n".join(lines) + "\n"] if lines else []


def _growth(results: Results) -> str:
    names = images(results["growth"]).values()
    shown = "\n".join(f"![{name}](../docs/{name})" for name in names)
    return f"## Growth\n\nEvery point is one run.\n\n{shown}\n" if shown else ""


def _large(results: Results) -> str:
    rows = []
    for preset, stages in results.get("large", {}).get("presets", {}).items():
        for stage, took in stages.items():
            rows.append([preset, stage, number(took["wall"]), number(took["cpu"])])
    if not rows:
        return ""
    nodes = results["large"]["nodes"]
    head = f"## A graph of {nodes:,} nodes\n\nA chain of Conv, Relu and Add on tiny tensors.\n\n"
    return head + table(["preset", "stage", "s", "CPU s"], rows)
