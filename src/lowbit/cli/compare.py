"""``lowbit compare``: how far a quantized model is from its float model."""

from __future__ import annotations

import argparse
import json
import sys

from lowbit.cli.images import make_preprocessing
from lowbit.diagnose import compare
from lowbit.terminal.consoles import stdout
from lowbit.terminal.progress import show_stages
from lowbit.terminal.report import show_comparison


def run(args: argparse.Namespace) -> None:
    """Compare and show the figures."""
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
    if args.json:
        fields = json.loads(report.to_json())
        whole = {"reference": args.reference, "quantized_model": args.quantized, **fields}
        sys.stdout.write(json.dumps(whole, indent=2) + "\n")
    else:
        show_comparison(stdout(), report)
