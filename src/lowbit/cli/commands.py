"""The commands; the larger ones have a module of their own."""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from lowbit.cli.completion import completion
from lowbit.cli.options import make_parser
from lowbit.cli.process import print_json
from lowbit.config.presets import PRESETS
from lowbit.errors import ConfigError, visible
from lowbit.files import check_outputs, writing
from lowbit.report.listings import show_evaluation, show_plan, show_presets, show_targets
from lowbit.report.progress import show_stages
from lowbit.report.tables import counted, stdout
from lowbit.targets.builtin import BUILTIN, find_target


def plan(args: argparse.Namespace) -> None:
    """Plan, write the plan where asked to, and show it."""
    from lowbit.api.quantize import planned_state
    from lowbit.cli.configuration import make_config
    from lowbit.planning.plan import save_plan

    check_outputs({"--output": args.output}, [args.model])
    state = planned_state(args.model, config=make_config(args))
    if args.output is not None:
        with writing({args.output: lambda path: save_plan(state.plan, path)}):
            pass
    if args.json:
        print_json(state.plan)
    else:
        nodes = state.adapted.graph.num_nodes()
        show_plan(stdout(), state.plan, state.target, nodes=nodes, everything=args.all)


def infer(args: argparse.Namespace) -> None:
    """Run the model and write its outputs."""
    from lowbit.cli.configuration import make_preprocessing
    from lowbit.evaluate.folders import infer as run

    preprocessing = make_preprocessing(args)
    with show_stages(quiet=args.quiet) as progress:
        count = run(
            args.model,
            args.output,
            data=args.data,
            limit=args.limit,
            preprocessing=preprocessing,
            fused=args.fused,
            progress=lambda done: progress("infer", done, args.limit),
        )
    if not args.quiet:
        sys.stdout.write(
            f"wrote the outputs of {counted(count, 'sample')} to {visible(args.output)}\n"
        )


def evaluate(args: argparse.Namespace) -> None:
    """Compare two folders of results and show the figures."""
    from lowbit.evaluate.folders import evaluate as run

    if args.json and args.csv:
        raise ConfigError("--json and --csv both print the result: give one of the two")
    found = run(args.baseline, args.quantized)
    if args.json:
        sys.stdout.write(json.dumps(json.loads(found.to_json()), indent=2) + "\n")
    elif args.csv:
        sys.stdout.write(found.to_csv())
    else:
        show_evaluation(stdout(), found, everything=args.all)


def convert(args: argparse.Namespace) -> None:
    """Convert one file into another."""
    from lowbit.api.convert import convert as run
    from lowbit.api.quantize import source_files

    check_outputs({"OUTPUT": args.output}, source_files(args.model))
    run(
        args.model,
        args.output,
        to=args.to,
        casts=not args.operators,
        half_weights=not args.full_weights,
    )
    if not args.quiet:
        sys.stdout.write(f"wrote {visible(args.output)} in {args.to} ({_size(args.output)})\n")


def _size(path: str) -> str:
    from lowbit.graph import io
    from lowbit.report.tables import size

    files = [pathlib.Path(path), *io.weight_files(path)]
    return size(sum(file.stat().st_size for file in files))


def presets(args: argparse.Namespace) -> None:
    """List the presets."""
    if not args.json:
        show_presets(stdout(), list(PRESETS.values()))
        return
    print_json(
        [
            {"name": p.name, "summary": p.summary, "config": msgspec.to_builtins(p.config)}
            for p in PRESETS.values()
        ]
    )


def targets(args: argparse.Namespace) -> None:
    """List the targets, or print one."""
    if args.name is not None:
        print_json(find_target(args.name))
    elif args.json:
        print_json(list(BUILTIN.values()))
    else:
        show_targets(stdout(), list(BUILTIN.values()))


_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "quantize": "quantize",
        "compare": "compare",
        "sweep": "sweep",
        "inspect": "models",
        "bench": "models",
    }
)
"""Commands that are not in this module; each is imported when it is asked for, since most are heavy."""


def find_command(name: str) -> Callable[[argparse.Namespace], None]:
    """Return what runs a command."""
    module = importlib.import_module(f"lowbit.cli.{_MODULES.get(name, 'commands')}")
    return getattr(module, name)  # type: ignore[no-any-return]


def print_completion(shell: str) -> None:
    """Print the completion script of a shell."""
    values = {"--preset": tuple(PRESETS), "--target": tuple(BUILTIN)}
    sys.stdout.write(completion(shell, make_parser(), values))
