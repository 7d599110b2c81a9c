"""From a built model to one that meets a goal, with the report of how it was found."""

from __future__ import annotations

import dataclasses

import msgspec

from lowbit.data.split import Split
from lowbit.pipeline import stages
from lowbit.pipeline.verify import verify
from lowbit.report.values import Report
from lowbit.search.finishing import Finisher
from lowbit.search.goal_evaluator import GoalEvaluator
from lowbit.search.goal_search import Candidate, GoalSearch, Request, restored
from lowbit.search.goal_strategies import STRATEGIES
from lowbit.search.kept_trials import KeptTrials, Took
from lowbit.state import Calibrated, Quantized, extended


def reach_goal(
    finisher: Finisher, built: Quantized, samples: Split, request: Request, *, promote: bool
) -> tuple[Quantized, Report, stages.Refinement]:
    """Return the cheapest model that meets the goal, or the best that was found in the time."""
    clock = finisher.pipeline.clock
    # Nothing but the goal's own figure sees the held-out samples before the end.
    seen = dataclasses.replace(samples, verifying=samples.validating)
    built = extended(built, Quantized, samples=seen)
    kept_trials = KeptTrials.of(finisher.pipeline.store, built, request.goal, request.labels)
    first, took = _preset(finisher, built, kept_trials, promote=promote)
    with clock.charge("search"):
        evaluator = GoalEvaluator(request.goal, built, samples, request.labels)
        search = GoalSearch(request, evaluator, finisher, first, kept_trials, took)
        for name, strategy in STRATEGIES.items():
            if not search.end and name in (request.strategies or STRATEGIES):
                strategy(search)
                search.look(name)
        kept, measured, outcome = search.outcome()
    state = stages.as_written(extended(kept.state, Quantized, samples=samples))
    stages.record_origin(state)
    with clock.stage("verify"):
        report = verify(state, samples, finisher.steps, reused=finisher.reused)
    report = msgspec.structs.replace(
        report, promoted=kept.promoted, goal=outcome, accuracy=measured.accuracy
    )
    return state, report, kept.refinement


def _preset(
    finisher: Finisher, built: Quantized, kept: KeptTrials, *, promote: bool
) -> tuple[Candidate, Took]:
    """Return what the preset gives, and what that took; both from an earlier run if they are kept."""
    words = "preset", str(promote)
    known = kept.get(*words)
    again = None if known is None else restored(finisher, built, known)
    if known is not None and again is not None:
        return again, known.took
    found = _preset_alone(finisher, built, promote=promote)
    seconds = finisher.pipeline.clock.seconds
    took = Took(seconds.get("refine", 0.0), sum(seconds.values()))
    if kept.is_open and found.refinement.complete:
        kept.put(msgspec.structs.replace(found.kept(None), took=took), *words)
    return found, took


def _preset_alone(finisher: Finisher, built: Quantized, *, promote: bool) -> Candidate:
    """Return what the preset gives without a goal."""
    state, report, refinement = finisher.promoted(built) if promote else finisher.finished(built)
    if report.promoted:
        built = finisher.pipeline.finish(extended(state, Calibrated))
    return Candidate(built, state, refinement, report.promoted)
