"""The performance targets of lowbit, and whether the results meet them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.figures import calibration_ratio, least, memory_above_float, of, relative_to
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
        rows += [*_of_model(runs, model), *_whole_runs(runs, model), *_accuracy(results, model)]
    return [*rows, *_flat(results), *_large(results)]


_SECONDS = {
    ("mobilenet_v2", "native-a8w8"): 8.0,
    ("mobilenet_v2", "native-xint8"): 8.0,
    ("mobilenet_v2", "native-a8w8-bare"): 3.5,
    ("efficientnet_lite0", "native-a8w8"): 12.0,
    ("efficientnet_lite0", "native-xint8"): 12.0,
    ("segmentation", "native-xint8"): 40.0,
}
_PEAK_MB = {
    ("efficientnet_lite0", "native-a8w8"): 450,
    ("efficientnet_lite0", "native-xint8"): 450,
    ("segmentation", "native-xint8"): 600,
}
_DIVERGENCE = {
    ("mobilenet_v2", "native-xint8"): 0.040,
    ("mobilenet_v2", "native-a8w8"): 0.033,
    ("mobilenet_v2", "native-u8s8_perchannel"): 0.015,
    ("mobilenet_v2", "native-xint8_accurate"): 0.030,
    ("mobilenet_v2", "native-a8w8_accurate"): 0.022,
    ("mobilenet_v2", "native-u8s8_perchannel_accurate"): 0.010,
}
_GAPS = {
    ("yolov8n", "native-xint8"): -1.95,
    ("yolov8n", "native-a8w8"): -0.65,
    ("minilm", "native-xint8"): -1.5,
    ("minilm", "native-a8w8"): -0.3,
    ("minilm", "native-u8s8_perchannel"): -0.3,
}


def _whole_runs(runs: Sequence[Mapping[str, Any]], model: str) -> Iterable[list[str]]:
    for key, unit, wanted in (("wall", "s", _SECONDS), ("peak_mb", "MB", _PEAK_MB)):
        for (name, job), most in wanted.items():
            found = least(of(runs, model, job, LOWBIT), key) if name == model else None
            if found is not None:
                title = f"{model}: {JOBS[job].title}, {'time' if unit == 's' else 'peak memory'}"
                digits = 1 if unit == "s" else 0
                figure = f"{found:.{digits}f} {unit}"
                yield [title, f"<= {most:g} {unit}", figure, _met(found <= most)]


def _accuracy(results: Results, model: str) -> Iterable[list[str]]:
    own = {
        s["job"]: s
        for s in results["scores"]
        if s["model"] == model and s["tool"] == LOWBIT and not s["error"]
    }
    for (name, job), most in _DIVERGENCE.items():
        if name == model and job in own and own[job]["kl"] is not None:
            found, error = own[job]["kl"], own[job]["kl_error"]
            title = f"{model}: {JOBS[job].title}, KL divergence from float"
            yield [title, f"<= {most:g}", f"{found:.4f} ± {error:.4f}", _met(found <= most)]
    for (name, job), most in _GAPS.items():
        if name == model and job in own:
            found = own[job]["gap"]
            title = f"{model}: {JOBS[job].title}, {own[job]['metric']} above float"
            yield [title, f">= {most:g}", f"{found:+.2f}", _met(found >= most)]


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
    for job, wanted in faster:
        ratio = relative_to(runs, model, JOBS[job], "quark", "wall")
        if ratio is not None:
            title = f"{model}: {JOBS[job].title}, faster than Quark's {JOBS[JOBS[job].like].title}"
            yield [title, f">= {wanted:g}x", times(ratio), _met(ratio >= wanted)]
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
        title = f"memory flat in samples: {many['value']} against {few['value']}"
        yield [title, "< 20 MB more", f"{more:+.0f} MB", _met(more < 20)]


def _large(results: Results) -> Iterable[list[str]]:
    large = results.get("large", {})
    for preset, stages in large.get("presets", {}).items():
        seconds = sum(stages[stage]["cpu"] for stage in ("plan", "solve", "emit"))
        planned = sum(stages[stage]["cpu"] for stage in ("plan", "emit"))
        yield [
            f"{large['nodes']:,} nodes planned and emitted, {preset}, CPU seconds",
            "< 5 s",
            f"{planned:.1f} s ({seconds:.1f} s with solving scales)",
            _met(planned < 5),
        ]


def _met(yes: bool) -> str:  # noqa: FBT001
    return "yes" if yes else "**no**"
