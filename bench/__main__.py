"""Compare lowbit with its rivals: one command.

    python -m bench                                      # everything, environments made as needed
    python -m bench --models example --jobs xint8 --rivals quark --python quark=/opt/quark/bin/python
    python -m bench --parts large                        # only the 20,000-node graph
    python -m bench --render                             # the page again from results.json

Models other than the bundled example are skipped, with a word, unless ``LOWBIT_ASSETS`` names their
folder. What an earlier run measured and this one does not is kept in ``results.json``.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import lowbit
from bench import machine
from bench.environments import parse_pythons, pythons
from bench.growth import AXES, draw, grow
from bench.jobs import LOWBIT, RIVALS, choose
from bench.results import render
from bench.rounds import Bench, score_all, take_turns
from bench.subjects import EXAMPLE, available, subject

HERE = pathlib.Path(__file__).resolve().parent
JSON, PAGE, DOCS = HERE / "results.json", HERE / "RESULTS.md", HERE.parent / "docs"
PARTS = ("table", "growth", "large")
EMPTY: Mapping[str, Any] = {"machine": {}, "runs": [], "scores": [], "growth": [], "large": {}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for, and write the results; 1 if lowbit failed at anything."""
    asked = _parser().parse_args(arguments)
    if not asked.render:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.threads])
        _measure(asked)
    results = json.loads(JSON.read_text())
    draw(results["growth"], DOCS)
    PAGE.write_text(render(results))
    print(f"wrote {PAGE}")
    return int(any(r["tool"] == LOWBIT and r["error"] for r in results["runs"]))


def _measure(asked: argparse.Namespace) -> None:
    results = dict(json.loads(JSON.read_text()) if JSON.exists() else EMPTY)
    results["machine"] = machine.describe()
    results["notes"] = asked.note or results.get("notes", [])
    rivals = [name for name in asked.rivals.split(",") if name]
    work = pathlib.Path(asked.work).absolute()
    parts = asked.parts.split(",")
    needed = rivals if {"table", "growth"} & set(parts) else []
    # As pip does for the rivals when it installs them.
    compileall.compile_dir(pathlib.Path(lowbit.__file__).parent, quiet=1)
    bench = Bench(pythons(needed, parse_pythons(asked.python), work), work, asked.timeout)
    for name in available(asked.models.split(",")) if "table" in parts else ():
        case = subject(name, asked.samples, asked.images, work)
        jobs = choose(asked.jobs, small=name == EXAMPLE)
        runs = take_turns(bench, case, jobs, (LOWBIT, *rivals), asked.repeats)
        results["runs"] = merged(results["runs"], runs, ("model", "job", "tool", "beside"))
        _write(results)
        scores = score_all(bench, case, runs)
        results["scores"] = merged(results["scores"], scores, ("model", "job", "tool"))
        _write(results)
    for axis in asked.axes.split(",") if "growth" in parts else ():
        results["growth"] = merged(results["growth"], grow(bench, axis), ("axis", "job", "tool"))
        _write(results)
    if "large" in parts:
        from bench.large import NODES, stages

        presets = {preset: stages(preset) for preset in ("A8W8", "XINT8")}
        results["large"] = {"nodes": NODES, "presets": presets}
    _write(results)


def merged(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> list[Mapping[str, Any]]:
    """Return the new records, behind the old ones of which there is no newer kind."""
    measured = {tuple(record[key] for key in keys) for record in new}
    kept = [record for record in old if tuple(record[key] for key in keys) not in measured]
    return [*kept, *new]


def _write(results: Mapping[str, Any]) -> None:
    text = json.dumps(_rounded(results), indent=1, sort_keys=True)
    JSON.write_text(text + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--parts", default=",".join(PARTS), help="of table, growth, large (default: all)")
    add("--models", default=f"{EXAMPLE},mobilenet_v2", help="comma-separated")
    add("--jobs", help="comma-separated; all if not given")
    add("--rivals", default=",".join(RIVALS), help="comma-separated, or '' for none")
    add("--axes", default=",".join(AXES), help="of growth: samples, depth, size")
    add("--python", action="append", default=[], metavar="RIVAL=PATH", help="an environment to use")
    add("--samples", type=int, default=64, help="to calibrate on")
    add("--images", type=int, default=500, help="to measure accuracy on")
    add("--repeats", type=int, default=3, help="rounds")
    add("--threads", type=int, default=os.cpu_count(), help="processors that everything may use")
    add("--timeout", type=float, default=3600.0, help="seconds for one run")
    add("--work", default=".bench", help="where environments, data and models go")
    add(
        "--note",
        action="append",
        default=[],
        help="a sentence for the page, such as what was skipped",
    )
    add("--render", action="store_true", help="measure nothing; write the page again")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
