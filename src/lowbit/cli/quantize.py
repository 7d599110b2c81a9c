"""``lowbit quantize``: the whole pipeline, its files and its result."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from lowbit.api.compare import examine
from lowbit.api.quantize import Result, checkpoint_of, source_files
from lowbit.api.quantize import quantize as run
from lowbit.calibrate.statistics import load_stats, save_stats
from lowbit.cli.configuration import make_config, make_preprocessing
from lowbit.cli.process import TerminatedError, say
from lowbit.config.config import QuantConfig
from lowbit.errors import ConfigError, GoalMissedError, visible
from lowbit.evaluate.accuracy import find_metric
from lowbit.files import Write, check_outputs, writing
from lowbit.parallel import engine
from lowbit.pipeline.verify import next_step
from lowbit.planning.plan import load_plan, save_plan
from lowbit.report.html import write_report as write_report_page
from lowbit.report.progress import TYPICAL, show_stages
from lowbit.report.result import show_result
from lowbit.report.summary import show_summary
from lowbit.report.tables import stdout
from lowbit.report.values import Report
from lowbit.search.goal import Goal
from lowbit.search.keep_if_better import has_optional_steps


def quantize(args: argparse.Namespace) -> None:
    """Quantize, verify, write, and show how good it is."""
    _check_files(args)
    preprocessing = make_preprocessing(args)
    plan = load_plan(args.plan) if args.plan else None
    config = make_config(args, plan)
    stats = load_stats(args.stats) if args.stats else None
    with (
        _kept_layers_named(args.output),
        engine(args.cluster, args.workers),
        show_stages(quiet=args.quiet or args.json, stages=_stages(config, args)) as progress,
    ):
        result = run(
            args.model,
            data=args.data,
            config=config,
            plan=plan,
            stats=stats,
            limit=args.limit,
            preprocessing=preprocessing,
            min_sqnr=args.min_sqnr,
            verify=args.verify,
            promote=not args.no_promote,
            allow_ruined=args.allow_ruined,
            keep_histograms=args.save_stats is not None,
            checkpoint=checkpoint_of(args.output),
            resume=args.resume,
            state_dir=args.state,
            keep_partial=args.keep_partial,
            goal=_goal(args),
            budget=args.budget,
            labels=args.labels,
            strategies=args.strategies or (),
            progress=progress,
        )
        if _wants_page(args):
            # The page shows what single tensors do, which has to be analyzed.
            report = examine(args.model, result, progress=progress)
            result = dataclasses.replace(result, report=report)
    document = _document(result.report, args)
    with writing(_side_files(result, document, args)):
        result.save(args.output)
    if args.json:
        sys.stdout.write(document)
    elif args.verbose:
        show_result(stdout(), result.report, args.output)
    elif not args.quiet:
        show_summary(stdout(), result.report, args.output, _next_step(args))
    _warn(result, args.output)
    refuse_missed(result.report, args.output)


@contextlib.contextmanager
def _kept_layers_named(output: str) -> Iterator[None]:
    """Make an interruption of the body say where finished layers are, and how to go on with them."""
    try:
        yield
    except (KeyboardInterrupt, TerminatedError) as error:
        kept = checkpoint_of(output)
        if not kept.is_dir():
            raise
        kind = type(error)
        raise kind(
            f" but finished layers, in {visible(str(kept))}: --resume continues with them"
        ) from error


def _warn(result: Result, output: str) -> None:
    """Say on stderr, whatever else is shown, that the model is not usable."""
    verdict, samples = result.report.verdict, result.samples
    if verdict is None or verdict.is_usable or samples is None or samples.data.is_random:
        return
    say(f"warning: {output} is {verdict.level} ({verdict.describe()}). {next_step(result.report)}")


def _check_files(args: argparse.Namespace) -> None:
    """Raise for files that cannot be written, before any work."""
    check_outputs(
        {
            "OUTPUT": args.output,
            "--save-plan": args.save_plan,
            "--save-stats": args.save_stats,
            "--report": args.report,
        },
        [
            *source_files(args.model, args.data),
            *(path for path in (args.plan, args.stats, args.config) if path),
            *([args.labels] if args.labels and pathlib.Path(args.labels).exists() else []),
        ],
    )
    if args.stats and args.save_stats:
        raise ConfigError(
            "--stats reads statistics and --save-stats writes them: give one of the two"
        )


def _goal(args: argparse.Namespace) -> Goal | None:
    if args.metric is not None and args.goal is None:
        raise ConfigError("--metric is given, but no --goal to measure by it, such as drop<=0.5")
    if args.goal is None:
        return None
    return Goal(args.goal, None if args.metric is None else find_metric(args.metric))


def refuse_missed(report: Report, output: str) -> None:
    """Raise if a goal was missed; the model is written all the same."""
    if report.goal is not None and not report.goal.met:
        raise GoalMissedError(
            f"{output} misses the goal {report.goal.goal}: {report.goal.describe()}"
        )


def _stages(config: QuantConfig, args: argparse.Namespace) -> set[str]:
    """Return the stages that this run will go through, for the time that is left."""
    needed = {
        "refine": config.refinement is not None,
        "search": any((config.mixed_precision, config.scale_search, args.goal)),
        "promote": False,  # only where a model turns out not to be usable
        "validate": has_optional_steps(config) and not args.stats,
        "sensitivity": config.sensitivity is not None and not args.stats,
        "calibrate": not args.stats,
        "compare": _wants_page(args),
        "analyze": _wants_page(args),
    }
    return {stage for stage in TYPICAL if needed.get(stage, True)}


def _wants_page(args: argparse.Namespace) -> bool:
    return bool(args.report) and args.report.endswith(".html")


def _next_step(args: argparse.Namespace) -> str:
    if _wants_page(args):
        return f"open {args.report} to see which tensors cause the error, and what would lower it"
    return "add --report page.html to see which tensors cause the error, and what would lower it"


def _document(report: Report, args: argparse.Namespace) -> str:
    fields: dict[str, Any] = json.loads(report.to_json())
    worst = report.sqnr_db if math.isfinite(report.sqnr_db) else None
    whole = {
        "model": visible(args.model),
        "output": visible(args.output),
        "sqnr_db": worst,
        **fields,
    }
    return json.dumps(whole, indent=2) + "\n"


def _side_files(result: Result, document: str, args: argparse.Namespace) -> dict[str, Write]:
    def write_report(path: pathlib.Path) -> None:
        if path.suffix == ".html":
            write_report_page(result.report, path, title=pathlib.Path(args.output).name)
        else:
            path.write_text(document, encoding="utf-8")

    wanted: tuple[tuple[str | None, Write], ...] = (
        (args.save_plan, lambda path: save_plan(result.plan, path)),
        (args.save_stats, lambda path: save_stats(result.stats, path)),
        (args.report, write_report),
    )
    return {path: write for path, write in wanted if path is not None}
