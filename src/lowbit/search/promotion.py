"""Promotion: a model that is not usable gets wider formats, in the fewest places that make it so.

The quantized model is run with switches in the place of its quantizers (``lowbit.analyze.sensitivity``), so
that any part of it can be tried in float without building it. What is found becomes rules of the
configuration, from which the model is planned, solved and emitted as any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from lowbit.analyze.quantizers import find_quantizers, read_constants
from lowbit.analyze.sensitivity import add_switches
from lowbit.config.specs import IntegerSpec, Rule
from lowbit.errors import PlanError
from lowbit.evaluate.cost import NodeCost, node_costs
from lowbit.evaluate.output_kinds import MeasuredOutput, find_measured, measured_tensors, strongest
from lowbit.evaluate.runner import ReferenceSample, Run, compared, reference_samples
from lowbit.evaluate.verdict import OutputErrors
from lowbit.graph.openvino import OpenVinoSession
from lowbit.graph.session import Array, Session
from lowbit.parallel import ordered_map
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.pipeline.verify import quantized_names
from lowbit.report.values import PromotedRegion
from lowbit.search.promotion_graph import PromotionGraph, wide_spec
from lowbit.search.rebuilding import rebuilt
from lowbit.search.regions import Choice, RegionSearch, Trial
from lowbit.state import Quantized, Transformed, extended

_CONSIDERED, _SAMPLES, _FOR_PARTS = 48, 16, 6
"""Samples to choose from, those to measure a choice on, and those for its parts."""

_MEMORY_FOR_OUTPUTS = 64 << 20
_WANTED_DB = 3.0
"""How far inside the usable a promoted model is to be: few samples are tried, others are to hold."""

_LEAST_DB = 1.0

_EFFORT, _BUILT = 64, 3
"""Parts that are measured, and models that are built."""

_MORE_DB, _MORE_COST = 4.0, 0.02
"""So much less noise is worth so much of the cost beyond what is enough."""

_TOO_NARROW_DB = 4.0


Margin = Callable[[OutputErrors], float]


def usable_margin(errors: OutputErrors) -> float:
    """Return how far inside the usable a model is, in decibels."""
    verdict = errors.verdict(held_out=True)
    return -math.inf if verdict is None else verdict.margin_db


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """What promotion is to reach: a margin, where it is counted from, and why."""

    margin: Margin = usable_margin
    wanted_db: float = _WANTED_DB
    least_db: float = _LEAST_DB
    why: str = "the model is not usable without it"

    def raised(self, promised_db: float) -> Requirement:
        """Return a higher one, after other samples gave so much less than those of the search."""
        more = max(promised_db, self.wanted_db)
        return dataclasses.replace(
            self, wanted_db=self.wanted_db + more, least_db=self.least_db + more
        )


USABLE = Requirement()


@dataclasses.dataclass(frozen=True, slots=True)
class Promoted:
    """The model after promotion, what of it was promoted, and what that brought in decibels."""

    state: Quantized
    regions: tuple[PromotedRegion, ...]
    before_db: float
    after_db: float
    tried: int

    def where(self) -> str:
        """Return the first regions in words."""
        more = f"; and {len(self.regions) - 3} more" if len(self.regions) > 3 else ""
        return "; ".join(region.describe() for region in self.regions[:3]) + more

    def describe(self) -> str:
        """Return it in words, for the notes of a report."""
        if not self.regions:
            return "promotion found nothing that makes the model usable"
        return (
            f"promoted {self.where()}: noise {self.after_db - self.before_db:.1f} dB lower on validation "
            f"samples, {self.tried} candidates tried (--no-promote keeps the first plan)"
        )


class Promoter:
    """Finds what to promote in one model."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: Quantized,
        refined: Quantized,
        required: Requirement = USABLE,
    ) -> None:
        """Run the float model on a few samples; ``refined`` is what refinement makes of the model."""
        if state.samples is None:
            raise ValueError("promotion is measured on samples")
        # Tensors that share a scale may have different formats, so all statistics must serve all.
        self._pipeline = dataclasses.replace(pipeline, keep_histograms=True)
        self._state, self._refined, self._required = state, refined, required
        self._tried = 0
        names = quantized_names(state)
        self._wanted = [name for name in measured_tensors(state.loaded) if name in names]
        feeds = itertools.islice(state.samples.calibration(), _CONSIDERED)
        run = Run.float_model(state.loaded, self._wanted)
        known = reference_samples(run, feeds, _MEMORY_FOR_OUTPUTS)
        values = strongest(sample.outputs for sample in known)
        self._measured = find_measured(state.loaded, values, names)
        self._samples = _telling(known, self._measured)

    def margin(self, state: Quantized) -> float:
        """Return how far inside the usable a model is on the validation samples."""
        names = quantized_names(state)
        measured = [row for row in self._measured if row.tensor in names]
        errors = OutputErrors(measured, names)
        run = Run.quantized_model(state.emitted.model, [names[row.tensor] for row in measured])
        for want, got in compared(run, self._samples):
            errors.add(want, got)
        return self._required.margin(errors)

    def promote(self) -> Promoted:
        """Return the model, not yet refined, with as little promoted as makes it usable when it is."""
        state = self._state
        before, refined = self.margin(state), self.margin(self._refined)
        if not math.isfinite(before):
            return Promoted(state, (), before, before, self._tried)
        # What refinement is expected to bring once more.
        gain = max(0.0, refined - before)
        best, rules = state, self._exact_arithmetic(state)
        if rules:
            candidate = self._built(state, rules)
            if self.margin(candidate) > before or not self._bears_arithmetic(state):
                best = candidate
        rules = rules if best is not state else ()
        if self.margin(best) + gain < self._required.wanted_db:
            # Not in the refined model: its weights make up for quantizers that would be switched off.
            found = self._search(best, self._required.wanted_db - gain)
            if found is not None:
                best, rules = found[0], (*rules, *found[1])
        after = self.margin(best)
        if after <= before:
            return Promoted(state, (), before, before, self._tried)
        return Promoted(best, self._regions(rules), before, after, self._tried)

    def _search(
        self, state: Quantized, wanted_db: float
    ) -> tuple[Quantized, tuple[Rule, ...]] | None:
        """Return the model with as little promoted as is enough."""
        graph = PromotionGraph.of(state, self._costs(state))
        wide = wide_spec(state)
        with self._switched(state) as margin:

            def measure(choice: Choice, samples: int) -> float:
                self._tried += 1
                return margin(graph.switched_off(choice), samples)

            search = RegionSearch(
                graph.costs,
                lambda choice: measure(choice, _FOR_PARTS),
                lambda choice: measure(choice, _SAMPLES),
                has_wide=wide is not None,
            )
            most = measure(graph.all_in_float(), _SAMPLES)
            wanted_db = min(wanted_db, most - 1.0)
            search.divide(wanted_db, _EFFORT)
            return self._realized(state, graph, search, wide, wanted_db)

    def _realized(
        self,
        state: Quantized,
        graph: PromotionGraph,
        search: RegionSearch,
        wide: IntegerSpec | None,
        wanted_db: float,
    ) -> tuple[Quantized, tuple[Rule, ...]] | None:
        """Build what is chosen, and choose more of it if the model is not as good as it looked."""
        missing, best = 0.0, None
        for _ in range(_BUILT):
            trial = self._chosen(search, wanted_db + missing)
            if trial is None and best is not None:
                break
            if trial is None:  # all of it in float is no quantized model
                trial = search.one_part(self._required.least_db)
            rules = graph.rules(trial.choice, wide, self._required.why)
            try:
                built = self._built(state, rules) if rules else state
            except PlanError:  # nothing is left to be quantized
                break
            margin = self.margin(built)
            if best is None or margin > best[0]:
                best = (margin, built, rules)
            if margin >= wanted_db - (self._required.wanted_db - self._required.least_db):
                break
            if trial.choice.wide and margin < trial.margin_db - _TOO_NARROW_DB:
                # 16 bits may be too few as well, which the switches do not show.
                search = search.without_wide()
                continue
            missing += max(1.0, wanted_db - margin)
        return None if best is None else (best[1], best[2])

    def _chosen(self, search: RegionSearch, wanted_db: float) -> Trial | None:
        """Return the cheapest choice that is enough, or one that brings much more for little."""
        found = search.cheapest(wanted_db)
        if found is None:
            return None
        more = search.cheapest(wanted_db + _MORE_DB)
        return more if more is not None and more.cost <= found.cost + _MORE_COST else found

    def _built(self, state: Quantized, rules: Sequence[Rule]) -> Quantized:
        """Return the model with further rules; what statistics lack is collected."""
        config = msgspec.structs.replace(state.config, rules=(*state.config.rules, *rules))
        return rebuilt(self._pipeline, state, config)

    def _exact_arithmetic(self, state: Quantized) -> tuple[Rule, ...]:
        """Return a rule for nodes that the device computes otherwise than the float model does."""
        if not state.target.arithmetic:
            return ()
        skipped = (*state.config.skip_rewrites, *state.target.arithmetic)
        config = msgspec.structs.replace(state.config, skip_rewrites=skipped)
        plain = stages.prepare(extended(state, Transformed, config=config))
        operators = {node.name: node.op_type for node in plain.adapted.graph}
        nodes = [
            str(node.name)
            for node in state.adapted.graph
            if operators.get(node.name, node.op_type) != node.op_type
        ]
        if not nodes:
            return ()
        why = "promoted: the device's approximation of it is too coarse for this model"
        return (Rule(nodes=tuple(nodes), exclude=True, why=why, optional=True),)

    def _bears_arithmetic(self, state: Quantized) -> bool:
        """Whether the device's approximations alone leave the model as good as it has to be."""
        graph = PromotionGraph.of(state, self._costs(state))
        with self._switched(state) as margin:
            every = graph.switched_off(graph.all_in_float())
            return margin(every, _SAMPLES) > self._required.wanted_db + _MORE_DB

    def _costs(self, state: Quantized) -> Mapping[str, NodeCost]:
        return node_costs(state.adapted, self._samples[0].feed)

    @contextlib.contextmanager
    def _switched(self, state: Quantized) -> Iterator[Callable[[set[str], int], float]]:
        """Yield a function from tensors that are not quantized, and a number of samples, to the margin."""
        quantizers = find_quantizers(state.emitted.model)
        constants = read_constants(state.emitted.model, state.adapted, quantizers)
        known = {n: c.float_value for n, c in constants.items() if c.float_value is not None}
        switched = add_switches(state.emitted.model, quantizers, known)
        names = quantized_names(state)
        measured = [row for row in self._measured if row.tensor in names]
        outputs = list(dict.fromkeys(names[row.tensor] for row in measured))
        with Run.quantized_model(switched.model, outputs).opened() as running:

            def margin(off: set[str], samples: int) -> float:
                switches = [switched.switches[name] for name in off if name in switched.switches]
                settings = {switch.name: np.array(False) for switch in switches}
                errors = OutputErrors(measured, names)
                part = self._samples[:samples]
                for sample, got in zip(part, _run(running, outputs, part, settings), strict=True):
                    errors.add(sample.outputs, got)
                return self._required.margin(errors)

            yield margin

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


def _run(
    running: Session | OpenVinoSession,
    outputs: Sequence[str],
    samples: Sequence[ReferenceSample],
    settings: Mapping[str, Array],
) -> Iterator[dict[str, Array]]:
    def work(sample: ReferenceSample) -> dict[str, Array]:
        feed = {**sample.feed, **settings}
        return dict(zip(outputs, running.run(outputs, feed), strict=True))

    return ordered_map(work, samples)


def _telling(
    samples: Sequence[ReferenceSample], measured: Sequence[MeasuredOutput]
) -> list[ReferenceSample]:
    """Return the samples that say most: where outputs are strong, then others, evenly spaced."""
    if len(samples) <= _SAMPLES:
        return list(samples)
    signal = np.array(
        [
            [_power(row.part.of(sample.outputs[row.tensor])) for row in measured]
            for sample in samples
        ]
    )
    share = (signal / np.maximum(signal.sum(axis=0), 1e-30)).max(axis=1)
    strong = list(np.argsort(-share, kind="stable")[: _SAMPLES // 2])
    others = [i for i in range(len(samples)) if i not in strong]
    spaced = np.linspace(0, len(others) - 1, _SAMPLES - len(strong)).round().astype(int)
    mixed = itertools.zip_longest(strong, (others[i] for i in spaced))
    return [samples[i] for pair in mixed for i in pair if i is not None]


def _power(array: Array) -> float:
    return float(np.square(array, dtype=np.float64).sum()) if array.dtype.kind == "f" else 1.0
