"""The benchmark jobs, and how each tool runs them.

Settings are plain values; the scripts in ``bench/tools`` read them in the tool's own environment.
A tool that has no such job is skipped in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

LOWBIT = "lowbit"
RIVALS = ("quark", "onnxsim", "onnxruntime", "nncf")
TITLES = {
    LOWBIT: "lowbit",
    "quark": "AMD Quark 0.13",
    "onnxsim": "onnxsim 0.8.1",
    "onnxruntime": "onnxruntime 1.31.1",
    "nncf": "NNCF 3.4.0",
}


@dataclasses.dataclass(frozen=True)
class Job:
    """One thing to do to a model.

    ``like``: the job whose rivals this one is compared with, when they have nothing closer to it.
    ``slow``: it takes a rival half an hour on a model of any size, so that only the bundled example
    is given unless the job is asked for by name.
    """

    name: str
    title: str
    settings: Mapping[str, Mapping[str, Any]]
    like: str = ""
    slow: bool = False

    @property
    def refines(self) -> bool:
        """Whether lowbit learns from data in it, beyond calibration."""
        mine = self.settings[LOWBIT]
        return bool(mine.get("refine") or mine.get("iterations"))


def _same_preset(name: str, title: str, preset: str, rivals: str, **more: Any) -> Job:
    """Return a job that each tool does by AMD Quark's preset of one name, with Quark's numbers."""
    settings = {tool: {"preset": preset, **more} for tool in rivals.split()}
    return Job(name, title, {LOWBIT: {"preset": preset, "family": "quark", **more}, **settings})


def _native(preset: str, like: str, *, refine: bool) -> Job:
    """Return a job of one of lowbit's own presets."""
    title = f"lowbit's own {preset}" + (
        ", reconstructed" if refine else ", equalized, not reconstructed"
    )
    name = f"native-{preset.lower()}" + ("" if refine else "-calibrated")
    settings = {"preset": preset, "family": "native", "refine": refine}
    return Job(name, title, {LOWBIT: settings}, like=like)


def _slow(job: Job) -> Job:
    return dataclasses.replace(job, slow=True)


def _with_onnxruntime(job: Job, **settings: str | bool) -> Job:
    return dataclasses.replace(job, settings={**job.settings, "onnxruntime": settings})


def _with_nncf(job: Job) -> Job:
    return dataclasses.replace(job, settings={**job.settings, "nncf": {}})


ITERATIONS = 100
"""Of AdaRound and AdaQuant, for each layer, on either side."""

_ALL = (
    _with_nncf(
        _with_onnxruntime(
            _same_preset("a8w8-minmax", "A8W8, MinMax", "A8W8", "quark onnxsim"),
            activation="QInt8",
            method="MinMax",
        )
    ),
    _with_onnxruntime(
        _same_preset(
            "a8w8-percentile", "A8W8, Percentile 99.999", "A8W8", "quark onnxsim", percentile=99.999
        ),
        activation="QInt8",
        method="Percentile",
    ),
    _same_preset("xint8", "XINT8, MinMSE", "XINT8", "quark onnxsim"),
    _same_preset("xint8-cle", "XINT8, MinMSE, equalized", "XINT8", "quark onnxsim", cle=True),
    _with_onnxruntime(
        _same_preset("a16w8", "A16W8, MinMax", "A16W8", "quark onnxsim"),
        activation="QInt16",
        method="MinMax",
    ),
    _same_preset("bf16", "BF16", "BF16", "quark onnxsim"),
    _slow(
        _same_preset(
            "adaround",
            f"A8W8, AdaRound, {ITERATIONS} iterations",
            "A8W8_ADAROUND",
            "quark",
            iterations=ITERATIONS,
        )
    ),
    _slow(
        _same_preset(
            "adaquant",
            f"A8W8, AdaQuant, {ITERATIONS} iterations",
            "A8W8_ADAQUANT",
            "quark",
            iterations=ITERATIONS,
        )
    ),
    Job(
        "native-a8w8-bare",
        "lowbit's own A8W8, MinMax and nothing else",
        {LOWBIT: {"preset": "A8W8", "family": "native", "refine": False, "bare": True}},
        like="a8w8-minmax",
    ),
    _native("A8W8", "a8w8-minmax", refine=False),
    _native("XINT8", "xint8", refine=False),
    _native("A8W8", "a8w8-minmax", refine=True),
    _native("XINT8", "xint8", refine=True),
    _native("A16W8", "a16w8", refine=True),
    _with_nncf(
        _with_onnxruntime(
            _native("U8S8_PERCHANNEL", "", refine=True),
            activation="QUInt8",
            method="MinMax",
            per_channel=True,
        )
    ),
    _slow(_native("A8W8_ACCURATE", "a8w8-minmax", refine=True)),
    _slow(_native("XINT8_ACCURATE", "xint8", refine=True)),
    _slow(_native("U8S8_PERCHANNEL_ACCURATE", "native-u8s8_perchannel", refine=True)),
)

JOBS: Mapping[str, Job] = {job.name: job for job in _ALL}


def choose(names: str | None, *, small: bool = True) -> tuple[Job, ...]:
    """Return the jobs of a comma-separated list, or all; slow ones only for a small model."""
    if names is None:
        return tuple(job for job in JOBS.values() if small or not job.slow)
    unknown = [name for name in names.split(",") if name not in JOBS]
    if unknown:
        raise SystemExit(f"unknown job {unknown[0]!r} (known: {', '.join(JOBS)})")
    return tuple(JOBS[name] for name in names.split(","))
