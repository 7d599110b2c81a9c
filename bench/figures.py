"""From raw runs to figures: ratios within a round, then their median over rounds.

A machine that others use as well is slow now and fast a minute later. Two runs of one round were
close in time, so their ratio says more than the ratio of two averages.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.jobs import LOWBIT, Job
from bench.rounds import FLOAT

Record = Mapping[str, Any]


def of(records: Iterable[Record], model: str, job: str, tool: str) -> list[Record]:
    """Return the runs of a tool at a job that did not fail."""
    return [
        r
        for r in records
        if (r["model"], r["job"], r["tool"]) == (model, job, tool) and not r["error"]
    ]


def failure(records: Iterable[Record], model: str, job: str, tool: str) -> str:
    """Return why a tool failed at a job, or nothing."""
    found = (r["error"] for r in records if (r["model"], r["job"], r["tool"]) == (model, job, tool))
    return next((error for error in found if error), "")


def median_ratio(above: Sequence[Record], below: Sequence[Record], key: str) -> float | None:
    """Return the median over rounds of a ratio taken within each round."""
    denominators = {r["round"]: r[key] for r in below}
    ratios = [r[key] / denominators[r["round"]] for r in above if r["round"] in denominators]
    return statistics.median(ratios) if ratios else None


def relative_to(
    records: Sequence[Record], model: str, job: Job, tool: str, key: str
) -> float | None:
    """Return how many times more a rival takes than lowbit, at this job or the one it is like."""
    name = job.like or job.name
    return median_ratio(of(records, model, name, tool), of(records, model, job.name, LOWBIT), key)


def least(records: Sequence[Record], key: str) -> float | None:
    """Return the least of a figure over rounds: noise only adds."""
    return min((r[key] for r in records), default=None)


def pass_seconds(records: Iterable[Record], model: str, job: str) -> dict[int, float]:
    """Return the seconds of the float pass measured with a job, by round."""
    floors = of(records, model, FLOAT, FLOAT)
    return {r["round"]: r["pass_seconds"] for r in floors if r["beside"] == job}


def calibration_ratio(records: Sequence[Record], model: str, job: str) -> float | None:
    """Return what lowbit's calibration takes, in float passes."""
    passes = pass_seconds(records, model, job)
    runs = of(records, model, job, LOWBIT)
    ratios = [r["phases"]["calibrate"] / passes[r["round"]] for r in runs if r["round"] in passes]
    return statistics.median(ratios) if ratios else None


def whole_ratio(records: Sequence[Record], model: str, job: str, tool: str) -> float | None:
    """Return what a whole run takes, in float passes."""
    passes = pass_seconds(records, model, job)
    runs = of(records, model, job, tool)
    ratios = [r["wall"] / passes[r["round"]] for r in runs if r["round"] in passes]
    return statistics.median(ratios) if ratios else None


def memory_above_float(records: Sequence[Record], model: str, job: str) -> float | None:
    """Return lowbit's peak memory above that of a process that only runs the float model, in MB."""
    mine = least(of(records, model, job, LOWBIT), "peak_mb")
    floor = least(of(records, model, FLOAT, FLOAT), "peak_mb")
    return None if mine is None or floor is None else mine - floor
