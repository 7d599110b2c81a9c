"""``lowbit infer``: what a model gives for each sample, as files."""

from __future__ import annotations

import argparse
import sys

from lowbit.cli.configuration import make_preprocessing
from lowbit.evaluate import infer
from lowbit.report.progress import show_stages
from lowbit.report.tables import counted


def run(args: argparse.Namespace) -> None:
    """Run the model and write its outputs."""
    preprocessing = make_preprocessing(args)
    with show_stages(quiet=args.quiet) as progress:
        count = infer(
            args.model,
            args.output,
            data=args.data,
            limit=args.limit,
            preprocessing=preprocessing,
            fused=args.fused,
            progress=lambda done: progress("infer", done, args.limit),
        )
    if not args.quiet:
        sys.stdout.write(f"wrote the outputs of {counted(count, 'sample')} to {args.output}\n")
