"""``lowbit plan``: every decision before any data is seen, and what would stay in float."""

from __future__ import annotations

import argparse
import sys

import msgspec

from lowbit.api import prepare
from lowbit.cli.configuration import make_config
from lowbit.cli.saving import check_outputs, writing
from lowbit.graph import io
from lowbit.planning import make_plan
from lowbit.planning.plan import save_plan
from lowbit.report.plan import show_plan
from lowbit.report.tables import stdout


def run(args: argparse.Namespace) -> None:
    """Plan, write the plan where asked to, and show it."""
    check_outputs({"--output": args.output}, [args.model])
    config = make_config(args)
    ready = prepare(io.load(args.model), config)
    plan = make_plan(ready.adapted, config, ready.target)
    if args.output is not None:
        with writing({args.output: lambda path: save_plan(plan, path)}):
            pass
    if args.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plan)).decode() + "\n")
    else:
        nodes = ready.adapted.graph.num_nodes()
        show_plan(stdout(), plan, ready.target, nodes=nodes, everything=args.all)
