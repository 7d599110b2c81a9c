"""``lowbit convert``: another float format, without data."""

from __future__ import annotations

import argparse
import pathlib
import sys

from lowbit.api import convert
from lowbit.cli.saving import check_outputs


def run(args: argparse.Namespace) -> None:
    """Convert one file into another."""
    check_outputs({"OUTPUT": args.output}, [args.model])
    convert(
        args.model,
        args.output,
        to=args.to,
        casts=not args.operators,
        half_weights=not args.full_weights,
    )
    if not args.quiet:
        sys.stdout.write(f"wrote {args.output} in {args.to} ({_megabytes(args.output)} MB)\n")


def _megabytes(path: str) -> str:
    files = [file for file in (pathlib.Path(path), pathlib.Path(f"{path}.data")) if file.exists()]
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f}"
