"""``lowbit compare``: how far quantized models are from their float model, and why."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from lowbit.analyze.gates import Outcome, read_gate, refuse_failed, to_junit, try_gates
from lowbit.api.compare import compare as run
from lowbit.api.quantize import source_files
from lowbit.cli.configuration import make_preprocessing
from lowbit.errors import ConfigError, visible
from lowbit.files import Write, check_outputs, writing
from lowbit.report.html import write_report
from lowbit.report.progress import Tell, show_stages
from lowbit.report.result import show_comparison, show_models
from lowbit.report.tables import stdout
from lowbit.report.values import Report


def compare(args: argparse.Namespace) -> None:
    """Compare, write what was asked for, and show the figures."""
    check_outputs(
        {"--report": args.report, "--junit": args.junit},
        [
            *source_files(args.reference, args.data),
            *(file for model in args.quantized for file in source_files(model)),
        ],
    )
    gates = [read_gate(text) for text in args.fail_if]
    _check_counts(args, is_gated=bool(gates))
    with show_stages(quiet=args.quiet or args.json, stages=["compare", "analyze"]) as progress:
        reports = {model: _compared(args, model, progress) for model in args.quantized}
    first = next(iter(reports.values()))
    outcomes = try_gates(gates, first)
    document = _document(reports, args)
    with writing(_files(reports, document, outcomes, args)):
        pass
    if args.json:
        sys.stdout.write(document)
    elif len(reports) > 1:
        show_models(stdout(), reports, args.report or "")
    else:
        show_comparison(stdout(), first)
    refuse_failed(outcomes)


def _check_counts(args: argparse.Namespace, *, is_gated: bool) -> None:
    if args.junit and not is_gated:
        raise ConfigError("--junit writes the outcome of gates; give at least one --fail-if")
    if is_gated and len(args.quantized) > 1:
        raise ConfigError(
            f"--fail-if is for one quantized model, but {len(args.quantized)} are given: "
            "compare them one by one"
        )
    if len(set(args.quantized)) < len(args.quantized):
        raise ConfigError("a quantized model is given twice: give each once")


def _compared(args: argparse.Namespace, quantized: str, progress: Tell) -> Report:
    return run(
        args.reference,
        quantized,
        args.data,
        limit=args.limit,
        preprocessing=make_preprocessing(args),
        budget=args.budget,
        labels=args.labels,
        metric=args.metric,
        tolerance=args.tolerance,
        timed=args.time,
        runtime=args.runtime,
        calibration=args.retry,
        progress=progress,
    )


def _document(reports: Mapping[str, Report], args: argparse.Namespace) -> str:
    """Return the report as JSON; of several models, a list of them."""
    whole = [
        {
            "reference": visible(args.reference),
            "quantized_model": visible(model),
            **json.loads(report.to_json()),
        }
        for model, report in reports.items()
    ]
    return json.dumps(whole if len(whole) > 1 else whole[0], indent=2) + "\n"


def _files(
    reports: Mapping[str, Report],
    document: str,
    outcomes: Sequence[Outcome],
    args: argparse.Namespace,
) -> dict[str, Write]:
    (model, report), *others = reports.items()
    name = pathlib.Path(model).name

    def write(path: pathlib.Path) -> None:
        if path.suffix == ".html":
            write_report(report, path, title=name, others=dict(others))
        else:
            path.write_text(document, encoding="utf-8")

    def write_junit(path: pathlib.Path) -> None:
        seconds = sum(report.seconds.values())
        path.write_bytes(to_junit(outcomes, name, seconds))

    wanted: tuple[tuple[str | None, Write], ...] = (
        (args.report, write),
        (args.junit, write_junit),
    )
    return {path: write for path, write in wanted if path is not None}
