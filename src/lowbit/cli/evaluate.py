"""``lowbit evaluate``: how alike two folders of results are."""

from __future__ import annotations

import argparse
import json
import sys

from lowbit.errors import ConfigError
from lowbit.evaluate import evaluate
from lowbit.report.listings import show_evaluation
from lowbit.report.tables import stdout


def run(args: argparse.Namespace) -> None:
    """Compare the folders and show the figures."""
    if args.json and args.csv:
        raise ConfigError("--json and --csv both print the result: leave out one of the two")
    found = evaluate(args.baseline, args.quantized)
    if args.json:
        sys.stdout.write(json.dumps(json.loads(found.to_json()), indent=2) + "\n")
    elif args.csv:
        sys.stdout.write(found.to_csv())
    else:
        show_evaluation(stdout(), found, everything=args.all)
