"""The search for a model that meets a goal: from the cheapest plan upwards, as long as there is time.

The preset alone comes first. Each strategy then starts from the best so far; what lowers the noise on the
samples of the search is kept. A candidate that may meet the goal is measured on held-out samples, and the
first that meets it there with the confidence asked for ends the search. With a store a search that was
killed finds what it had tried.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json
from lowbit.errors import LowbitError, PlanError
from lowbit.evaluate.labels import Label
from lowbit.parallel import worker_count
from lowbit.pipeline import stages
from lowbit.report.values import GoalOutcome, PromotedRegion
from lowbit.search.candidates import Screening, Setting, screen_candidates
from lowbit.search.finishing import Finisher
from lowbit.search.goal import Goal
from lowbit.search.goal_evaluator import GoalEvaluator, Measurement
from lowbit.search.history import Budget, End, Outcome, Row, SearchHistory
from lowbit.search.kept_trials import KeptTrial, KeptTrials, Took, model_hash
from lowbit.state import Calibrated, Quantized, extended

BETTER_DB = 0.1
"""The least reduction of noise that makes another model the best."""


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A model before and after its refinement, what of it was promoted, and what that means."""

    built: Quantized
    state: Quantized
    refinement: stages.Refinement = dataclasses.field(default_factory=stages.Refinement)
    promoted: tuple[PromotedRegion, ...] = ()
    note: str = ""

    def kept(self, measured: Measurement | None) -> KeptTrial:
        """Return it as a store keeps it."""
        return KeptTrial(
            measured=measured,
            config=config_json(self.built.config),
            model=model_hash(self.state.emitted.model),
            promoted=self.promoted,
            note=self.note,
            refinement_notes=self.refinement.notes,
        )


def restored(finisher: Finisher, base: Quantized, trial: KeptTrial) -> Candidate | None:
    """Return the candidate of a trial that was kept, built again from a model with the same transforms."""
    config = trial.configuration()
    if config is None:
        return None
    built = base if config == base.config else finisher.pipeline.rebuilt(base, config)
    state, _ = finisher.refined(built, keep=False)
    if model_hash(state.emitted.model) != trial.model:
        return None
    refinement = stages.Refinement(trial.refinement_notes)
    return Candidate(built, state, refinement, trial.promoted, trial.note)


@dataclasses.dataclass(frozen=True, slots=True)
class Screened:
    """A model that was measured without its refinement; where workers did it, it is not built here."""

    what: str
    config: QuantConfig
    margin_db: float
    built: Quantized | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A goal, its labels and strategies, and the budget in seconds since ``started``."""

    goal: Goal
    labels: Sequence[Label] | None = None
    budget: float | None = None
    strategies: tuple[str, ...] = ()
    started: float = dataclasses.field(default_factory=time.monotonic)

    @property
    def time(self) -> Budget:
        """How long it may take."""
        return Budget(self.budget, self.started)


class GoalSearch:
    """One search: the best candidate so far, and the history of all that was tried."""

    def __init__(
        self,
        request: Request,
        evaluator: GoalEvaluator,
        finisher: Finisher,
        first: Candidate,
        kept: KeptTrials | None = None,
        took: Took | None = None,
    ) -> None:
        """Begin with the preset alone, which ``took`` so long; ``kept`` are trials of an earlier run."""
        self.request, self.evaluator, self.finisher = request, evaluator, finisher
        self.kept, self.took = kept or KeptTrials(), took or Took()
        # Tensors may get other methods and formats, so all statistics must serve all.
        self.pipeline = dataclasses.replace(finisher.pipeline, keep_histograms=True)
        self.best = first
        self.measured = self.kept.measured(lambda: evaluator.searched(first.state), "preset")
        self.history = SearchHistory(
            request.time, lambda tried: self.pipeline.clock.tell("search", tried, None)
        )
        self.confirmed: Measurement | None = None
        self._first = first
        self._looked: tuple[Measurement, Measurement] | None = None
        self._keep("preset", first.state.config.name, first, self.measured, request.started)

    @property
    def end(self) -> End:
        """Why nothing more is tried, if so."""
        return self.history.end

    def attempt(
        self,
        strategy: str,
        what: str,
        make: Callable[[], Candidate | None],
        *,
        detail: str = "",
        expected: float = 0.0,
    ) -> bool:
        """Make a candidate and measure it; false if there is no time for it, or nothing is to be done.

        ``detail`` is what it depends on in addition to ``what`` and the best so far.
        """
        if self.end or not self.history.has_time(strategy, what, expected):
            return False
        start = time.monotonic()
        try:
            trial, candidate = self._tried(make, strategy, what, detail)
        except LowbitError as error:
            self.history.record(Row(strategy, what, start, note=str(error)))
            return True
        if trial.measured is None:
            self.history.record(Row(strategy, what, start, note=trial.note))
        elif trial.measured.margin_db <= self.measured.margin_db + BETTER_DB:
            self.history.record(_row(strategy, what, start, trial.measured, "dropped", trial.note))
        else:
            candidate = candidate or restored(self.finisher, self.best.built, trial) or make()
            if candidate is not None:
                self._keep(strategy, what, candidate, trial.measured, start)
        return True

    def _tried(
        self, make: Callable[[], Candidate | None], *words: str
    ) -> tuple[KeptTrial, Candidate | None]:
        """Return what a trial gave, from the store or by making it; only then there is a model already."""
        known = self.kept.get(*words)
        if known is not None:
            return known, None
        candidate = make()
        trial = KeptTrial(note="changes nothing in this model")
        if candidate is not None:
            found = self.evaluator.searched(candidate.state)
            trial = KeptTrial(measured=found, note=candidate.note)
        if self.kept.is_open and candidate is None:
            self.kept.put(trial, *words)
        elif self.kept.is_open and candidate is not None and candidate.refinement.complete:
            self.kept.put(candidate.kept(trial.measured), *words)
        return trial, candidate

    def screened(
        self, strategy: str, offered: Sequence[tuple[str, QuantConfig]]
    ) -> Iterator[Screened]:
        """Build candidates without their refinement, and measure them; yield those that can be.

        They may differ in how ranges are found, not in which tensors are quantized.
        """
        results = self._screened_by_workers(offered)
        for what, config in offered:
            if self.end or not self.history.has_time(strategy, what):
                return
            found = self._screened(strategy, what, config, next(results, None))
            if found is not None:
                yield found

    def _screened(
        self, strategy: str, what: str, config: QuantConfig, known: Screening | None
    ) -> Screened | None:
        start = time.monotonic()
        made: list[Quantized] = []

        def measure() -> Measurement:
            if known is not None and known.refused:
                raise PlanError(known.refused)
            if known is not None and known.outputs is not None:
                return self.evaluator.screened(known.names, known.outputs)
            made.append(self.pipeline.rebuilt(self.best.built, config))
            return self.evaluator.searched(made[0])

        try:
            measured = self.kept.measured(measure, strategy, what, config_json(config))
        except LowbitError as error:
            self.history.record(Row(strategy, what, start, note=str(error)))
            return None
        self.history.record(_row(strategy, what, start, measured, "dropped", "before refinement"))
        return Screened(what, config, measured.margin_db, made[0] if made else None)

    def _screened_by_workers(
        self, offered: Sequence[tuple[str, QuantConfig]]
    ) -> Iterator[Screening]:
        """Yield what workers find, in the order of the candidates; nothing where there are none."""
        if worker_count() is None or self.end:
            return
        base = extended(self.best.built, Calibrated)
        measured = self.evaluator.measured
        setting = Setting(base, measured[0], self.evaluator.searched_on, measured)
        if setting.is_portable:
            yield from screen_candidates(setting, offered, self.history.budget.left)

    def unrefined(self) -> Measurement:
        """Return the figures of the best before its refinement."""
        built = self.best.built
        return self.kept.measured(lambda: self.evaluator.searched(built), "unrefined")

    def built(self, screened: Screened) -> Quantized:
        """Return the model of a candidate, before its refinement."""
        return screened.built or self.pipeline.rebuilt(self.best.built, screened.config)

    def refined(
        self, built: Quantized, promoted: tuple[PromotedRegion, ...] = (), note: str = ""
    ) -> Candidate:
        """Return a candidate with its refinement; ``promoted`` is added to what is promoted already."""
        state, refinement = self.finisher.refined(built, keep=False)
        return Candidate(built, state, refinement, (*self.best.promoted, *promoted), note)

    def _keep(
        self, strategy: str, what: str, candidate: Candidate, measured: Measurement, start: float
    ) -> None:
        """Make a candidate the best, and look at held-out samples if it may meet the goal."""
        self.best, self.measured, self.confirmed = candidate, measured, None
        self.kept.follow(strategy, what)
        row = _row(strategy, what, start, measured, "kept", candidate.note)
        if self._is_worth_a_look(measured):
            found = self._look()
            note = "; ".join(word for word in (candidate.note, _words(found)) if word)
            row = dataclasses.replace(row, outcome=self._outcome_now(), note=note)
        self.history.record(row)

    def look(self, strategy: str) -> None:
        """Look at held-out samples after a strategy, before a costlier one, if the best has changed."""
        if self.end or self.confirmed is not None:
            return
        start, found = time.monotonic(), self._look()
        what, outcome = "the best so far, on held-out samples", self._outcome_now()
        self.history.record(_row(strategy, what, start, self.measured, outcome, _words(found)))

    def _outcome_now(self) -> Outcome:
        return "met" if self.end == "met" else "kept"

    def _look(self) -> Measurement:
        """Measure the best on held-out samples, and see whether that ends the search."""
        found = self._confirmed(self.best.state, "best")
        self.kept.follow("held out", repr(found))
        self.confirmed, self._looked = found, (self.measured, found)
        self.history.end = self._ended_by(found)
        return found

    def _confirmed(self, state: Quantized, which: str) -> Measurement:
        """Return figures on held-out samples; those of an earlier run count as a look, too."""
        words = "held out", which, repr(self.evaluator.tail)
        found = self.kept.known(*words)
        if found is not None:
            self.evaluator.count_look()
            return found
        return self.kept.measured(lambda: self.evaluator.confirmed(state), *words)

    def _ended_by(self, found: Measurement) -> End:
        goal = self.evaluator.goal
        if goal.is_met_by(found.figure):
            return "met"
        if self._is_beyond_float(found):
            return "float"
        seems_met = goal.condition.holds(found.figure.value)
        return "samples" if seems_met and not self._can_be_confirmed(found) else ""

    def _is_beyond_float(self, found: Measurement) -> bool:
        score = found.float_score
        return score is not None and not self.evaluator.goal.condition.holds(score)

    def _can_be_confirmed(self, found: Measurement) -> bool:
        return not found.noticeable or self.evaluator.goal.condition.holds(found.noticeable)

    def _is_worth_a_look(self, measured: Measurement) -> bool:
        """Whether a candidate may meet the goal, as far as the samples of the search tell."""
        figure, goal = measured.figure, self.evaluator.goal
        if self._looked is None and self._is_beyond_float(measured):
            return True  # held-out samples are to say so, too
        # The better end: on few samples much is possible.
        if not goal.condition.holds(figure.high if goal.condition.is_lower_limit else figure.low):
            return False
        if self._looked is None:
            return True
        before, found = self._looked
        return measured.margin_db >= before.margin_db + max(BETTER_DB, found.missing_db)

    def outcome(self) -> tuple[Candidate, Measurement, GoalOutcome]:
        """Return the model to keep, and how it was found: never one worse than the preset alone."""
        kept = self.best
        found = self.confirmed or self._confirmed(kept.state, "best")
        if self.end != "met" and kept is not self._first:
            alone = self._confirmed(self._first.state, "preset")
            if alone.margin_db > found.margin_db:
                kept, found = self._first, alone
        goal = self.evaluator.goal
        met = goal.is_met_by(found.figure)
        outcome = GoalOutcome(
            goal=goal.text,
            figure=goal.figure,
            met=met,
            value=found.figure.value,
            low=found.figure.low,
            high=found.figure.high,
            confidence=goal.confidence,
            samples=found.samples,
            search_samples=self.measured.samples,
            seconds=time.monotonic() - self.request.started,
            budget=self.request.budget,
            missing="" if met else self._missing(found),
            trials=tuple(self.history.rows),
        )
        return kept, found, outcome

    def _missing(self, found: Measurement) -> str:
        goal, figure = self.evaluator.goal, found.figure
        limit = goal.condition.limit
        words = f"{abs(goal.worse_end(figure) - limit):.3g} is missing to {goal.text}"
        if self.end == "float":
            return f"{words}: the float model itself has {found.float_score:.4g}"
        if not self._can_be_confirmed(found):
            more = round(found.samples * (found.noticeable / max(limit, 1e-3) - 1))
            return (
                f"{words}: on {found.samples} samples even a model without any loss is known only to "
                f"lose at most {found.noticeable:.2g}; give about {max(more, 1)} labelled samples more"
            )
        if self.end == "budget" or self.history.ran_out:
            return f"{words} when the budget ended; give more time"
        return f"{words}, after all that can be tried with {self._first.state.config.name}; take a preset with wider formats"


def _row(
    strategy: str, what: str, start: float, measured: Measurement, outcome: Outcome, note: str
) -> Row:
    return Row(strategy, what, start, measured.figure.value, measured.margin_db, outcome, note)


def _words(found: Measurement) -> str:
    figure = found.figure
    ends = f"{figure.low:.4g} to {figure.high:.4g}"
    return f"{figure.value:.4g} on {found.samples} held-out samples, surely {ends}"
