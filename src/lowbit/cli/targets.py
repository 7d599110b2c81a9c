"""``lowbit targets``: the built-in targets, and one of them as a file to start from."""

from __future__ import annotations

import argparse
import sys

import msgspec

from lowbit.report.listings import show_targets
from lowbit.report.tables import stdout
from lowbit.targets import find_target
from lowbit.targets.builtin import BUILTIN


def run(args: argparse.Namespace) -> None:
    """List the targets, or print one."""
    if args.name is not None:
        _print_json(find_target(args.name))
    elif args.json:
        _print_json(list(BUILTIN.values()))
    else:
        show_targets(stdout(), list(BUILTIN.values()))


def _print_json(value: object) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value)).decode() + "\n")
