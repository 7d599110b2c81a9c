"""``lowbit sweep``: one table over models and presets."""

from __future__ import annotations

import argparse
import pathlib

from lowbit.api.sweep import sweep as run
from lowbit.api.sweep import sweep_csv
from lowbit.cli.configuration import make_preprocessing
from lowbit.cli.process import print_json
from lowbit.files import Write, writing
from lowbit.parallel import engine
from lowbit.report.progress import show_stages
from lowbit.report.sweep_page import show_sweep, sweep_page
from lowbit.report.tables import stdout


def sweep(args: argparse.Namespace) -> None:
    """Quantize models with presets, and show what each pair gives."""
    with (
        engine(args.cluster, args.workers),
        show_stages(quiet=args.quiet or args.json, stages=["sweep"]) as progress,
    ):
        rows = run(
            args.models,
            presets=args.presets,
            data=args.data,
            out=args.out,
            limit=args.limit,
            preprocessing=make_preprocessing(args),
            labels=args.labels,
            state_dir=args.state,
            progress=progress,
        )
    if args.out is not None:
        texts = {"sweep.csv": sweep_csv(rows), "sweep.html": sweep_page(rows)}
        folder = pathlib.Path(args.out)
        with writing({str(folder / name): _writer(text) for name, text in texts.items()}):
            pass
    if args.json:
        print_json(rows)
    elif not args.quiet:
        show_sweep(stdout(), rows)


def _writer(text: str) -> Write:
    def write(path: pathlib.Path) -> None:
        path.write_text(text, encoding="utf-8")

    return write
