"""Promotion: a model that is not usable gets wider formats, in the fewest places that make it so.

The quantized model is run with switches in the place of its quantizers (``lowbit.analyze.sensitivity``), so
that any part of it can be tried in float without building it. What is found becomes rules of the
configuration, from which the model is planned, solved and emitted as any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec

from lowbit.calibrate.statistics import Stats
from lowbit.config.config import QuantConfig
from lowbit.config.specs import IntegerSpec, Rule
from lowbit.errors import PlanError
from lowbit.evaluate.cost import NodeCost, node_costs
from lowbit.evaluate.output_errors import OutputErrors
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.verify import quantized_names
from lowbit.report.values import PromotedRegion
from lowbit.search.promotion_graph import (
    PromotionGraph,
    exact_operators,
    rescaled_tensor,
    scale_groups,
    wide_spec,
)
from lowbit.search.promotion_samples import PromotionSamples
from lowbit.search.promotion_values import (
    COST_PER_DB,
    MORE_DB,
    USABLE,
    AskedMargin,
    Built,
    Promoted,
    Requirement,
    effort_for,
    is_too_narrow,
)
from lowbit.search.regions import Choice, RegionSearch, Trial, noise_of
from lowbit.search.scale_factors import FLOATS, POWERS_OF_TWO, Factors, find_factors
from lowbit.search.switched_model import open_switched
from lowbit.search.switched_parts import Switching
from lowbit.state import Quantized, extended

_FITTED = 0.5
"""The share of refinement's gain to count on, where samples were used by it."""

_SHOWN = 0.7
"""The share of its gain on verification samples to count on: it gains less the less noise there is."""

_SPARE_DB = 4.0
"""An approximation is kept if it leaves this much more margin than required."""

_RESCALED_DB = 0.3
"""Other scales are kept if they bring more."""


_Measure: TypeAlias = Callable[[Sequence[Switching], Sequence[int]], list[OutputErrors]]


class Promoter:
    """Finds what to promote in one model, as often as is asked for."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: Quantized,
        refined: Quantized | None = None,
        verified_db: float | None = None,
    ) -> None:
        """Run the float model on a few samples.

        ``refined`` is what refinement made of the model, ``verified_db`` how far inside the usable that is.
        """
        if state.samples is None:
            raise ValueError("promotion is measured on samples")
        # Tensors that share a scale may have different formats, so all statistics must serve all.
        self._pipeline = dataclasses.replace(pipeline, keep_histograms=True)
        self._state, self._refined, self._verified_db = state, refined, verified_db
        self.effort = effort_for(state)
        self._tried = 0
        self._samples = PromotionSamples.of(state, state.samples)
        self._errors: OutputErrors | None = None
        self._exact: tuple[Quantized, tuple[Rule, ...], OutputErrors] | None = None
        self._rescaled: tuple[Quantized, tuple[str, ...], OutputErrors] | None = None
        self._refining: tuple[OutputErrors, OutputErrors | None, OutputErrors | None] | None = None
        self._search: RegionSearch | None = None
        self._known: tuple[Quantized, Stats] | None = None
        self._measure: Callable[[Sequence[Choice], Sequence[int]], list[OutputErrors]] | None = None

    def margin(self, state: Quantized, required: Requirement = USABLE) -> float:
        """Return how far inside what is required a model is on the samples of the search."""
        return required.margin(self._samples.errors(state))

    def before(self, required: Requirement = USABLE) -> float:
        """Return the same of the model as it is."""
        return required.margin(self._before())

    def is_hopeless(self, by_db: float) -> bool:
        """Whether the model has so much noise that refinement does not make it usable.

        Divergence of classes does not tell: a few logits more or less right change it by 10 dB and more.
        """
        verdict = self._before().verdict(held_out=True)
        return verdict is not None and verdict.worst.unit == "dB" and self.before() < -by_db

    def _before(self) -> OutputErrors:
        """Return the errors of the model as it is, which is run only once."""
        if self._errors is None:
            self._errors = self._samples.errors(self._state)
        return self._errors

    def promote(self, required: Requirement = USABLE) -> Promoted:
        """Return the model, not yet refined, with as little promoted as is required when it is."""
        before, gain = self.before(required), self.gain(required)
        if not math.isfinite(before):
            return Promoted(self._state, (), before, before, self._tried)
        best, rules, rescaled, errors = self._for_free(required)
        after = required.margin(errors)
        if after + gain < required.wanted_db:
            # Not in the refined model: its weights make up for quantizers that would be switched off.
            found = self._found(best, errors, required, gain)
            if found is not None and found[0] > after:
                after, best, rules = found[0], found[1], (*rules, *found[2])
        return self._promoted(best, rules, rescaled, before, after)

    def change_for_free(self, required: Requirement = USABLE) -> Promoted:
        """Return the model with no more than what costs nothing: exact arithmetic, other scales."""
        before = self.before(required)
        if not math.isfinite(before):
            return Promoted(self._state, (), before, before, self._tried)
        best, rules, rescaled, errors = self._for_free(required)
        return self._promoted(best, rules, rescaled, before, required.margin(errors))

    def _for_free(
        self, required: Requirement
    ) -> tuple[Quantized, tuple[Rule, ...], tuple[str, ...], OutputErrors]:
        best, rules, errors = self._exact_arithmetic(required)
        rescaled: tuple[str, ...] = ()
        if required.margin(errors) + self.gain(required) < required.wanted_db:
            best, rescaled, errors = self._with_other_scales(best, errors, required)
        return best, rules, rescaled, errors

    def _promoted(
        self,
        state: Quantized,
        rules: tuple[Rule, ...],
        rescaled: tuple[str, ...],
        before: float,
        after: float,
    ) -> Promoted:
        if after <= before:
            return Promoted(self._state, (), before, before, self._tried)
        return Promoted(state, self._regions(rules), before, after, self._tried, rescaled)

    def saved(self, required: Requirement, spare_db: float) -> float:
        """Return the cost that so much less margin is expected to save, in multiply-adds of the model."""
        if self._search is None:
            return 0.0
        cost, wanted_db = self._search.expected_cost, required.wanted_db - self.gain(required)
        return cost(wanted_db) - cost(wanted_db - spare_db)

    def gain(self, required: Requirement) -> float:
        """Return what refinement is expected to bring once more: most of what verification showed.

        Where nothing was verified, as little as its own samples show.
        """
        if self._verified_db is not None:
            return max(0.0, _SHOWN * (self._verified_db - self.before(required)))
        return 0.0 if self._refined is None else self._fitted(self._refined, required)

    def _fitted(self, refined: Quantized, required: Requirement) -> float:
        if self._refining is None:
            unseen = self._samples.unseen
            self._refining = (
                self._samples.errors(refined),
                self._samples.errors(self._state, unseen) if unseen else None,
                self._samples.errors(refined, unseen) if unseen else None,
            )
        own, plain_unseen, refined_unseen = self._refining
        fitted = required.margin(own) - self.before(required)
        if plain_unseen is None or refined_unseen is None:
            return max(0.0, _FITTED * fitted)
        return max(0.0, min(fitted, required.part(refined_unseen) - required.part(plain_unseen)))

    def _found(
        self, state: Quantized, errors: OutputErrors, required: Requirement, gain: float
    ) -> tuple[float, Quantized, tuple[Rule, ...]] | None:
        """Return the model with as little promoted as is enough, and how far inside it then is."""
        graph = PromotionGraph.of(state, self._costs(state))
        with self._measuring(state, graph):
            every, few = self._samples.all, self._samples.few(errors)
            most = required.margin(self._measured([graph.all_in_float()], few)[0])
            wanted_db = min(required.wanted_db - gain, most - 1.0)
            if self._search is None:
                self._search = RegionSearch(
                    graph.costs,
                    lambda parts: [required.part(e) for e in self._measured(parts, few)],
                    lambda choice: required.margin(self._measured([choice], every)[0]),
                    wide_is_enough=lambda: self._wide_is_enough(state, graph, required, few),
                )
                self._search.divide(wanted_db, self.effort.parts)
            return self._realized(state, graph, self._search, required, wanted_db)

    def _wide_is_enough(
        self, state: Quantized, graph: PromotionGraph, required: Requirement, few: Sequence[int]
    ) -> bool:
        """Whether 16 bits are enough for the activations; measured on a built model, as switches do not show it."""
        spec = wide_spec(state)
        if spec is None:
            return False
        choice = Choice(wide=frozenset(range(len(graph.nodes))))
        expected = required.part(self._measured([choice], few)[0])
        built = self._built(state, graph.rules(choice, spec, required.why))
        chosen = [self._samples.chosen[index] for index in few]
        return not is_too_narrow(required.part(self._samples.errors(built, chosen)), expected)

    def _realized(
        self,
        state: Quantized,
        graph: PromotionGraph,
        search: RegionSearch,
        required: Requirement,
        wanted_db: float,
    ) -> tuple[float, Quantized, tuple[Rule, ...]] | None:
        """Build the choice; promote more if the model is worse than expected, and less if it is better."""
        least_db = wanted_db - (required.wanted_db - required.least_db)
        asked: AskedMargin | None = AskedMargin(wanted_db)
        found: dict[Choice, Built] = {}
        refused: set[Choice] = set()
        while asked is not None and len(found) < self.effort.built:
            trial = _chosen(search, asked.db)
            if trial is None and found:
                break
            if trial is None or trial.choice in refused:
                trial = search.one_part(required.least_db, refused)
            if trial is None or trial.choice in found:
                break
            rules = graph.rules(trial.choice, wide_spec(state), required.why)
            try:
                built = self._built(state, rules) if rules else state
            except PlanError:  # nothing is left to be quantized, as in a part without any layer
                refused.add(trial.choice)
                continue
            margin = self.margin(built, required)
            model = found[trial.choice] = Built(margin, trial.cost, built, rules)
            if margin < least_db and trial.choice.wide and is_too_narrow(margin, trial.margin_db):
                search = self._search = search.without_wide()
                continue
            # Giving up all of the promotion would save less than the margin may cost.
            if model.cost <= model.bonus(least_db):
                break
            asked = asked.after(margin - least_db)
        best = max(found.values(), key=lambda model: model.sort_key(least_db), default=None)
        return None if best is None else (best.margin_db, best.state, best.rules)

    def _built(self, state: Quantized, rules: Sequence[Rule]) -> Quantized:
        """Return the model with further rules; what statistics lack is collected."""
        config = msgspec.structs.replace(state.config, rules=(*state.config.rules, *rules))
        return self._rebuilt(state, config)

    def _rebuilt(self, state: Quantized, config: QuantConfig) -> Quantized:
        known = self._known if self._known is not None and self._known[0] is state else None
        source = state if known is None else extended(state, Quantized, stats=known[1])
        built = self._pipeline.rebuilt(source, config)
        self._known = (state, built.stats)
        return built

    def _exact_arithmetic(
        self, required: Requirement
    ) -> tuple[Quantized, tuple[Rule, ...], OutputErrors]:
        """Return the model with operators as they are, where the device's approximations harm it."""
        state, before = self._state, self._before()
        if self._exact is None:
            self._exact = (state, (), before)
            rules = exact_operators(state)
            if rules:
                candidate = self._built(state, rules)
                errors = self._samples.errors(candidate)
                is_better = required.margin(errors) > required.margin(before)
                if is_better or not self._tolerates_approximations(state, required):
                    self._exact = (candidate, rules, errors)
        return self._exact

    def _with_other_scales(
        self, state: Quantized, errors: OutputErrors, required: Requirement
    ) -> tuple[Quantized, tuple[str, ...], OutputErrors]:
        """Return the model with other scales where outputs are nearer to float with them."""
        if self._rescaled is None:
            self._rescaled = (state, (), errors)
            factors = self._factors(state, errors, required)
            if factors:
                overrides = tuple(rescaled_tensor(state, name, factors[name]) for name in factors)
                tensors = (*state.config.tensors, *overrides)
                config = msgspec.structs.replace(state.config, tensors=tensors)
                candidate = self._rebuilt(state, config)
                found = self._samples.errors(candidate)
                if required.margin(found) > required.margin(errors) + _RESCALED_DB:
                    self._rescaled = (candidate, tuple(factors), found)
        return self._rescaled

    def _factors(self, state: Quantized, errors: OutputErrors, required: Requirement) -> Factors:
        """Return what scales are to be multiplied by."""
        spec = state.config.activation
        if not isinstance(spec, IntegerSpec) or not self.effort.tries_scales:
            return {}
        plan, few = state.plan, self._samples.few(errors)
        every = frozenset(plan.by_name())
        graph = PromotionGraph.of(state, self._costs(state))
        with self._measuring(state, graph) as measure:

            def noises(choices: Sequence[Factors]) -> list[float]:
                self._tried += len(choices)
                asked = [Switching(every - set(c), tuple(c.items())) for c in choices]
                return [noise_of(required.part(e)) for e in measure(asked, few)]

            tried = POWERS_OF_TWO if spec.power_of_two else FLOATS
            return find_factors(scale_groups(state), noises, tried)

    def _tolerates_approximations(self, state: Quantized, required: Requirement) -> bool:
        """Whether the device's approximations alone leave the model as good as it has to be."""
        graph = PromotionGraph.of(state, self._costs(state))
        with self._measuring(state, graph):
            (errors,) = self._measured([graph.all_in_float()], self._samples.all)
        return required.margin(errors) > required.wanted_db + _SPARE_DB

    def _costs(self, state: Quantized) -> Mapping[str, NodeCost]:
        return node_costs(state.adapted, self._samples.chosen[0].feed)

    @contextlib.contextmanager
    def _measuring(self, state: Quantized, graph: PromotionGraph) -> Iterator[_Measure]:
        """Open one model to measure choices in; yields the function that measures it with tensors switched."""
        names = quantized_names(state)
        measured = self._samples.found_in(names)
        outputs = list(dict.fromkeys(names[row.tensor] for row in measured))
        with open_switched(state, outputs, self._samples.chosen) as switched:

            def measure(choices: Sequence[Switching], samples: Sequence[int]) -> list[OutputErrors]:
                found = [OutputErrors(measured, names) for _ in choices]
                for errors, rows in zip(found, switched.run_all(choices, samples), strict=True):
                    for want, got in rows:
                        errors.add(want, got)
                return found

            self._measure = lambda choices, samples: measure(
                [Switching(frozenset(graph.switched_off(c))) for c in choices], samples
            )
            yield measure
        self._measure = None

    def _measured(self, choices: Sequence[Choice], samples: Sequence[int]) -> list[OutputErrors]:
        if self._measure is None:
            raise ValueError("no model is open to be measured")
        self._tried += len(choices)
        return self._measure(choices, samples)

    def _regions(self, rules: Sequence[Rule]) -> tuple[PromotedRegion, ...]:
        costs = self._costs(self._state)
        every = sum(cost.multiply_adds for cost in costs.values()) or 1
        written = sum(cost.elements for cost in costs.values()) or 1
        rows = []
        for rule in rules:
            known = [costs[name] for name in rule.nodes if name in costs]
            rows.append(
                PromotedRegion(
                    first=rule.nodes[0],
                    last=rule.nodes[-1],
                    nodes=len(rule.nodes),
                    format="float" if rule.activation is None else rule.activation.format_name,
                    multiply_adds=sum(cost.multiply_adds for cost in known) / every,
                    elements=sum(cost.elements for cost in known) / written,
                    why=rule.why.removeprefix("promoted: "),
                )
            )
        return tuple(rows)


def _chosen(search: RegionSearch, wanted_db: float) -> Trial | None:
    """Return the best choice with enough margin: a cheap one, or one with more margin for little cost."""
    if search.cheapest(wanted_db) is None:
        return None
    enough = search.expected_cost(wanted_db)
    worth = {
        db: db * COST_PER_DB - (search.expected_cost(wanted_db + db) - enough)
        for db in range(MORE_DB + 1)
    }
    more = max(worth, key=lambda db: (worth[db], db))
    if more:
        search.cheapest(wanted_db + more, enough + more * COST_PER_DB)
    most_db = wanted_db + MORE_DB
    return search.best(wanted_db, lambda t: min(t.margin_db, most_db) * COST_PER_DB - t.cost)
