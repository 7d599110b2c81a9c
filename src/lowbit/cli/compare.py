"""``lowbit compare``: how far a quantized model is from its float model, and why."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

from lowbit.cli.images import make_preprocessing
from lowbit.cli.saving import Writer, check_outputs, writing
from lowbit.diagnose import compare
from lowbit.html import write_report
from lowbit.terminal.consoles import stdout
from lowbit.terminal.progress import show_stages
from lowbit.terminal.report import show_comparison
from lowbit.verify.report import Report


def run(args: argparse.Namespace) -> None:
    """Compare, write what was asked for, and show the figures."""
    check_outputs({"--report": args.report}, [args.reference, args.quantized])
    preprocessing = make_preprocessing(args)
    with show_stages(quiet=args.quiet or args.json) as progress:
        report = compare(
            args.reference,
            args.quantized,
            args.data,
            limit=args.limit,
            preprocessing=preprocessing,
            budget=args.budget,
            progress=progress,
        )
    document = _document(report, args)
    with writing(_files(report, document, args)):
        pass
    if args.json:
        sys.stdout.write(document)
    else:
        show_comparison(stdout(), report)


def _document(report: Report, args: argparse.Namespace) -> str:
    fields = json.loads(report.to_json())
    whole = {"reference": args.reference, "quantized_model": args.quantized, **fields}
    return json.dumps(whole, indent=2) + "\n"


def _files(report: Report, document: str, args: argparse.Namespace) -> dict[str, Writer]:
    if args.report is None:
        return {}

    def write(path: pathlib.Path) -> None:
        if path.suffix == ".html":
            write_report(report, path, title=pathlib.Path(args.quantized).name)
        else:
            path.write_text(document, encoding="utf-8")

    return {args.report: write}
