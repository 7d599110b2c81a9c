"""``lowbit compare``: how far a quantized model is from its float model, and why."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from lowbit.analyze.gates import Outcome, read_gate, refuse_failed, to_junit, try_gates
from lowbit.api.compare import compare as run
from lowbit.cli.configuration import make_preprocessing
from lowbit.cli.saving import Write, check_outputs, writing
from lowbit.errors import ConfigError
from lowbit.report.html import write_report
from lowbit.report.progress import show_stages
from lowbit.report.result import show_comparison
from lowbit.report.tables import stdout
from lowbit.report.values import Report


def compare(args: argparse.Namespace) -> None:
    """Compare, write what was asked for, and show the figures."""
    check_outputs(
        {"--report": args.report, "--junit": args.junit}, [args.reference, args.quantized]
    )
    gates = [read_gate(text) for text in args.fail_if]
    if args.junit and not gates:
        raise ConfigError("--junit writes the outcome of gates; give at least one --fail-if")
    preprocessing = make_preprocessing(args)
    with show_stages(quiet=args.quiet or args.json) as progress:
        report = run(
            args.reference,
            args.quantized,
            args.data,
            limit=args.limit,
            preprocessing=preprocessing,
            budget=args.budget,
            labels=args.labels,
            metric=args.metric,
            tolerance=args.tolerance,
            timed=args.time,
            calibration=args.retry,
            progress=progress,
        )
    outcomes = try_gates(gates, report)
    document = _document(report, args)
    with writing(_files(report, document, outcomes, args)):
        pass
    if args.json:
        sys.stdout.write(document)
    else:
        show_comparison(stdout(), report)
    refuse_failed(outcomes)


def _document(report: Report, args: argparse.Namespace) -> str:
    fields = json.loads(report.to_json())
    whole = {"reference": args.reference, "quantized_model": args.quantized, **fields}
    return json.dumps(whole, indent=2) + "\n"


def _files(
    report: Report, document: str, outcomes: Sequence[Outcome], args: argparse.Namespace
) -> dict[str, Write]:
    def write(path: pathlib.Path) -> None:
        if path.suffix == ".html":
            write_report(report, path, title=pathlib.Path(args.quantized).name)
        else:
            path.write_text(document, encoding="utf-8")

    def write_junit(path: pathlib.Path) -> None:
        seconds = sum(report.seconds.values())
        path.write_bytes(to_junit(outcomes, pathlib.Path(args.quantized).name, seconds))

    wanted: tuple[tuple[str | None, Write], ...] = (
        (args.report, write),
        (args.junit, write_junit),
    )
    return {path: write for path, write in wanted if path is not None}
