"""How candidates are measured against a goal: on samples of the search, and on samples held out of it.

Candidates are ranked by noise, not by accuracy: on the few samples of a search an accuracy is a matter of
luck. Every look at the held-out samples makes it likelier that one of them holds by luck, so the tail that is
left to a look becomes smaller from one to the next; over any number of them they add up to the whole.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from lowbit.data.split import Split
from lowbit.errors import ConfigError
from lowbit.evaluate.accuracy import (
    Accuracy,
    MetricScorer,
    Scorer,
    TopScorer,
    gap_of_hits,
)
from lowbit.evaluate.figures import GOALS, Figure
from lowbit.evaluate.labels import Label
from lowbit.evaluate.output_errors import OutputErrors
from lowbit.evaluate.output_kinds import (
    MeasuredOutput,
    find_measured,
    measured_tensors,
    seen_in,
)
from lowbit.evaluate.runner import (
    Outputs,
    Run,
    output_names,
    reference_samples,
    run_model,
    run_models,
)
from lowbit.graph.session import Feed
from lowbit.numerics.intervals import Interval
from lowbit.pipeline.verify import quantized_names
from lowbit.search.goal import Goal
from lowbit.search.promotion_values import usable_margin
from lowbit.state import Loaded, Quantized

_MEMORY_FOR_OUTPUTS = 64 << 20
_PERCENT = 100.0
_NEXT_LOOK_DB = 1.0
_CLASSES = ("classes", "labels")


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """A candidate on some samples.

    Attributes:
        figure: The goal's figure, of the worst output, with an interval.
        margin_db: How far its noise is below what the goal allows, or what is usable.
        missing_db: How much less noise there would have to be for the interval to be inside the goal.
        samples: How many samples it was measured on.
        float_score: The float model's own figure, where the goal is of accuracy.
        accuracy: Accuracy of both models.
        noticeable: The smallest drop that these samples can tell from none.
    """

    figure: Interval
    margin_db: float
    missing_db: float
    samples: int
    float_score: float | None = None
    accuracy: tuple[Accuracy, ...] = ()
    noticeable: float = 0.0


class GoalEvaluator:
    """Measures candidates of one model against one goal."""

    def __init__(
        self, goal: Goal, model: Loaded, samples: Split, labels: Sequence[Label] | None
    ) -> None:
        """Run the float model on the samples of the search."""
        self.goal, self._loaded, self._samples = goal, model.loaded, samples
        self._labels: Sequence[Label | None] = labels or [None] * samples.total
        run = Run.float_model(self._loaded, measured_tensors(self._loaded))
        self._known = list(reference_samples(run, samples.validation(), _MEMORY_FOR_OUTPUTS))
        self._looks = 0

    @property
    def search_samples(self) -> int:
        """How many samples candidates are ranked on."""
        return len(self._known)

    @property
    def tail(self) -> float:
        """How likely the next look may be wrong: such that all looks together may as the goal says."""
        share = 6 / (math.pi * (self._looks + 1)) ** 2
        return (1 - self.goal.confidence) * share

    @property
    def searched_on(self) -> list[Feed]:
        """The feeds of the search samples."""
        return [sample.feed for sample in self._known]

    @property
    def measured(self) -> tuple[str, ...]:
        """The tensors that outputs are measured at, as the float model calls them."""
        return tuple(measured_tensors(self._loaded))

    def searched(self, state: Quantized) -> Measurement:
        """Return a candidate's figures on the samples of the search."""
        names = quantized_names(state)
        run = Run.quantized_model(state.emitted.model, list(dict.fromkeys(names.values())))
        return self.screened(names, run_model(run, self.searched_on))

    def screened(self, names: Mapping[str, str], outputs: Iterable[Outputs]) -> Measurement:
        """Return the same from what a candidate gave; ``names`` are what it calls tensors."""
        labels = (self._labels[index] for index in sorted(self._samples.validating))
        rows = zip((sample.outputs for sample in self._known), outputs, labels, strict=False)
        return self._measured(rows, names, 1 - self.goal.confidence)

    def confirmed(self, state: Quantized) -> Measurement:
        """Return its figures on held-out samples; this is one more look at them."""
        names = quantized_names(state)
        runs = [
            Run.float_model(self._loaded, list(names)),
            Run.quantized_model(state.emitted.model, list(dict.fromkeys(names.values()))),
        ]
        held = sorted(self._samples.held_out)
        labels = (self._labels[index] for index in held)
        both = zip(run_models(runs, self._samples.data.select(held)), labels, strict=True)
        tail = self.tail
        self.count_look()
        return self._measured(
            ((a, b, label) for (_, (a, b)), label in both if a is not None and b is not None),
            names,
            tail,
        )

    def count_look(self) -> None:
        """Count a look at the held-out samples, also one whose figures are known."""
        self._looks += 1

    def _measured(
        self,
        samples: Iterable[tuple[Outputs, Outputs, Label | None]],
        names: Mapping[str, str],
        tail: float,
    ) -> Measurement:
        seen = seen_in(sample.outputs for sample in self._known)
        found = find_measured(self._loaded, seen, names)
        measured = _as_asked(self.goal.figure, found, seen.strongest)
        errors = OutputErrors(measured, names)
        scorer = self._scorer()
        count = 0
        outputs = output_names(self._loaded)
        for want, got, label in samples:
            errors.add(want, got)
            count += 1
            if scorer is not None:
                pair = [_outputs(want, outputs, {}), _outputs(got, outputs, names)]
                scorer.add([*pair, None], label)  # type: ignore[arg-type]  # a metric may take none
        if scorer is None:
            return self._of_outputs(errors, count, tail)
        return self._of_accuracy(scorer, errors, count, tail)

    def _scorer(self) -> Scorer | None:
        if not self.goal.is_of_accuracy:
            return None
        return TopScorer() if self.goal.metric is None else MetricScorer(self.goal.metric)

    def margin(self, errors: OutputErrors) -> float:
        """Return how far the noise is below what the goal allows, or below what is usable."""
        if self.goal.is_of_accuracy:
            return _order(usable_margin(errors))
        return min((margin for margin, _ in self._margins(errors, 0.5)), default=-math.inf)

    def _margins(self, errors: OutputErrors, tail: float) -> list[tuple[float, Interval]]:
        known = errors.intervals(self.goal.figure, tail).values()
        return [(_order(self._figure.margin_db(found.value)), found) for found in known]

    @property
    def _figure(self) -> Figure:
        """The goal's figure, with margins counted from its limit."""
        limit = self.goal.condition.limit
        return dataclasses.replace(GOALS[self.goal.figure], limits=(limit, limit, limit))

    def _of_outputs(self, errors: OutputErrors, count: int, tail: float) -> Measurement:
        margins = self._margins(errors, tail)
        if not margins:
            raise ConfigError(
                f"goal {self.goal.text!r} cannot be measured: no output of the model has a figure "
                f"{self.goal.figure}; try sqnr>=20"
            )
        margin, worst = min(margins, key=lambda pair: pair[0])
        missing = -_order(self._figure.margin_db(self.goal.worse_end(worst)))
        return Measurement(worst, margin, missing, count)

    def _of_accuracy(
        self, scorer: Scorer, errors: OutputErrors, count: int, tail: float
    ) -> Measurement:
        goal = self.goal
        accuracy = scorer.figures(1.0)
        found = next((row for row in scorer.figures(1.0, tail) if row.name == goal.scored), None)
        if found is None:
            known = ", ".join(row.name for row in accuracy)
            raise ConfigError(f"goal {goal.text!r} names {goal.scored}; the model has {known}")
        interval = scorer.scores(tail)[goal.scored]
        if goal.is_drop:
            interval = Interval(found.gap, found.low, found.high)
        return Measurement(
            interval,
            self.margin(errors),
            # How accuracy depends on noise is not known.
            _NEXT_LOOK_DB,
            count,
            float_score=0.0 if goal.is_drop else found.float_score,
            accuracy=accuracy,
            noticeable=_noticeable(count, tail) if goal.is_drop and goal.metric is None else 0.0,
        )


def _as_asked(
    figure: str, measured: Sequence[MeasuredOutput], values: Outputs
) -> Sequence[MeasuredOutput]:
    """Return the outputs as logits if a goal takes them for such and nothing else is known to be."""
    if figure not in ("kl", "agreement") or any(row.kind in _CLASSES for row in measured):
        return measured
    return [
        dataclasses.replace(row, kind="classes", axis=-1, logits=True)
        if values[row.tensor].ndim >= 2 and values[row.tensor].shape[-1] > 1
        else row
        for row in measured
    ]


def _order(margin: float) -> float:
    return -math.inf if math.isnan(margin) else margin


def _noticeable(count: int, tail: float) -> float:
    """Return the bound on the drop of a model that never differs from float, in points."""
    return gap_of_hits([True] * count, [True] * count, tail).high * _PERCENT if count else math.inf


def _outputs(found: Outputs, outputs: Sequence[str], names: Mapping[str, str]) -> Outputs:
    """Return the model's outputs, in order and under the float model's names."""
    return {
        name: found[names.get(name, name)] for name in outputs if names.get(name, name) in found
    }
