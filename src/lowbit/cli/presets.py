"""``lowbit presets``: the presets by name."""

from __future__ import annotations

import argparse
import sys

import msgspec

from lowbit.config.presets import PRESETS
from lowbit.report.listings import show_presets
from lowbit.report.tables import stdout


def run(args: argparse.Namespace) -> None:
    """List the presets."""
    if args.json:
        rows = [
            {
                "name": preset.name,
                "summary": preset.summary,
                "config": msgspec.to_builtins(preset.config),
            }
            for preset in PRESETS.values()
        ]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows)).decode() + "\n")
    else:
        show_presets(stdout(), list(PRESETS.values()))
