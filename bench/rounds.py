"""Runs of every tool in turns, so that what disturbs the machine disturbs all alike."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from bench.jobs import LOWBIT, Job
from bench.process import Run, measure
from bench.subjects import TOP1, Subject

TOOLS = pathlib.Path(__file__).resolve().parent / "tools"
FLOAT = "float"
_PASSES = 3
_FIGURES = ("images", "score", "gap", "gap_error", "kl", "kl_error", "sqnr_db")


@dataclasses.dataclass(frozen=True)
class Bench:
    """Where things are, and how each tool's Python is called."""

    pythons: Mapping[str, str]
    work: pathlib.Path
    timeout: float = 3600.0

    def run(self, script: str, tool: str, asked: Mapping[str, Any]) -> tuple[Run, dict[str, Any]]:
        """Run a script with a tool's Python; return what it took and what it answered."""
        folder = self.work / "runs"
        folder.mkdir(parents=True, exist_ok=True)
        request, answer = folder / "request.json", folder / "answer.json"
        request.write_text(json.dumps(asked))
        answer.unlink(missing_ok=True)
        command = [self.pythons[tool], str(TOOLS / script), str(request), str(answer)]
        run = measure(command, folder, self.timeout)
        if run.error:
            return run, {}
        return run, json.loads(answer.read_text())

    def floor(self, subject: Subject, job: Job, turn: int) -> dict[str, Any]:
        """Measure the plain float pass, together with a job."""
        asked = {**_data(subject), "settings": {"passes": _PASSES}}
        record = _record(subject, FLOAT, FLOAT, turn, *self.run("float_pass.py", LOWBIT, asked))
        return {**record, "beside": job.name}

    def quantize(self, subject: Subject, job: Job, tool: str, turn: int) -> dict[str, Any]:
        """Measure one tool at one job."""
        output = self.output(subject, job.name, tool)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)
        settings = dict(job.settings[tool])
        asked = {**_data(subject), "output": str(output), "settings": settings}
        run, answer = self.run(f"{tool}_job.py", tool, asked)
        if not run.error and not output.exists():
            run = dataclasses.replace(run, error="ended well but wrote nothing")
        size = output.stat().st_size if output.exists() else 0
        return {**_record(subject, job.name, tool, turn, run, answer), "bytes": size}

    def score(self, subject: Subject, model: pathlib.Path, job: str, tool: str) -> dict[str, Any]:
        """Measure how good a model is, in the environment of the tool that made it."""
        if subject.metric != TOP1:
            asked = {**_judged(subject, model, self.work), "assets": os.environ["LOWBIT_ASSETS"]}
            # What the assets need other than onnxruntime is in lowbit's own environment.
            run, answer = self.run("score_assets_job.py", LOWBIT, asked)
        else:
            asked = _judged(subject, model, self.work)
            run, answer = self.run("score_job.py", tool, asked)
            if run.error and "quark" in self.pythons:
                run, answer = self.run("score_job.py", "quark", asked)
        kept = {key: answer.get(key) for key in _FIGURES}
        named = {"model": subject.name, "metric": subject.metric, "job": job, "tool": tool}
        return {**named, "error": run.error, **kept}

    def output(self, subject: Subject, job: str, tool: str) -> pathlib.Path:
        """Return where a tool writes its model."""
        return self.work / "models" / subject.name / f"{job}-{tool}.onnx"


def _judged(subject: Subject, model: pathlib.Path, work: pathlib.Path) -> dict[str, Any]:
    name = f"{pathlib.Path(subject.images).parent.name}.npy" if subject.images else "judged.npy"
    return {
        "model": str(model),
        "input": subject.input,
        "images": subject.images,
        "labels": subject.labels,
        "metric": subject.metric,
        "count": subject.judged,
        "reference": str(work / "data" / subject.name / name),
    }


def _data(subject: Subject) -> dict[str, Any]:
    return {
        "model": subject.model,
        "input": subject.input,
        "samples": subject.samples,
        "attention": subject.attention,
    }


def _record(
    subject: Subject, job: str, tool: str, turn: int, run: Run, answer: Mapping[str, Any]
) -> dict[str, Any]:
    record = {
        "model": subject.name,
        "samples": subject.count,
        "job": job,
        "tool": tool,
        "beside": "",
        "round": turn,
        "load": round(os.getloadavg()[0], 2),
        **dataclasses.asdict(run),
        "phases": answer.get("wall", {}),
        "phases_cpu": answer.get("cpu", {}),
        "versions": answer.get("versions", {}),
    }
    return record | ({"pass_seconds": answer["pass_seconds"]} if "pass_seconds" in answer else {})


def take_turns(
    bench: Bench, subject: Subject, jobs: Iterable[Job], tools: Iterable[str], repeats: int
) -> list[dict[str, Any]]:
    """Measure every job with every tool that has it, ``repeats`` times over, one after the other."""
    jobs, tools, records = tuple(jobs), tuple(tools), []
    failed: set[tuple[str, str]] = set()
    for turn in range(repeats):
        for job in jobs:
            # The floor again for each job: the machine of a minute ago is not the one of now.
            records.append(bench.floor(subject, job, turn))
            for tool in (t for t in tools if t in job.settings and (job.name, t) not in failed):
                record = bench.quantize(subject, job, tool, turn)
                records.append(record)
                if record["error"]:
                    failed.add((job.name, tool))
                _tell(record)
    return records


def _tell(record: Mapping[str, Any]) -> None:
    text = f"{record['model']} {record['job']} {record['tool']}: "
    if record["error"]:
        text += f"failed: {record['error']}"
    else:
        text += f"{record['wall']:.1f} s, {record['cpu']:.1f} s of CPU, {record['peak_mb']:.0f} MB"
    print(text, flush=True)


def score_all(
    bench: Bench, subject: Subject, records: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Score the float model and, once, every model that was made; none if there is nothing to score by."""
    if subject.metric == TOP1 and not subject.images:
        return []
    scores = [bench.score(subject, pathlib.Path(subject.model), FLOAT, LOWBIT)]
    made = {(r["job"], r["tool"]): r for r in records if r["job"] != FLOAT and not r["error"]}
    for job, tool in made:
        scores.append(bench.score(subject, bench.output(subject, job, tool), job, tool))
        print(
            f"{subject.name} {job} {tool}: {subject.metric} {scores[-1]['score']}",
            scores[-1]["error"],
        )
    return scores
