"""``lowbit inspect`` and ``lowbit bench``: what models are, and how long they take."""

from __future__ import annotations

import argparse

from lowbit.cli.process import print_json
from lowbit.data import open_data
from lowbit.errors import ConfigError
from lowbit.evaluate.benchmark import benchmark
from lowbit.graph import io
from lowbit.graph.session import model_inputs
from lowbit.report.inspection import show_inspection
from lowbit.report.listings import show_timings
from lowbit.report.progress import show_stages
from lowbit.report.tables import stdout


def inspect(args: argparse.Namespace) -> None:
    """Show what a model is, and what each target would do with it."""
    from lowbit.api.inspect import inspect as run

    found = run(args.model)
    if args.json:
        print_json(found)
    else:
        show_inspection(stdout(), found, everything=args.all)


def bench(args: argparse.Namespace) -> None:
    """Run models in turn and show how long they take."""
    if len(set(args.models)) < len(args.models):
        raise ConfigError("a model is given twice: give each once")
    models = {name: io.load(name) for name in args.models}
    inputs = model_inputs(next(iter(models.values())))
    (feed,) = open_data(args.data, inputs, limit=1)
    with show_stages(quiet=args.quiet or args.json, stages=["bench"]) as progress:
        timings = benchmark(
            models,
            feed,
            runs=args.runs,
            threads=args.threads,
            provider=args.provider,
            runtime=args.runtime,
            progress=lambda done: progress("bench", done, args.runs),
        )
    if args.json:
        print_json(timings)
    else:
        where = args.provider or (
            "CPUExecutionProvider" if args.runtime == "onnxruntime" else args.runtime
        )
        show_timings(stdout(), timings, threads=args.threads, where=where)
