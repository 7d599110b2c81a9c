"""Mixed precision: measure what each layer does to the output in another format, then decide once.

The decision is a value; what follows from it is a configuration with a rule for each layer that
changes, from which the model is built as from any other.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.config import QuantConfig
from lowbit.config.files import config_json
from lowbit.config.mixed_precision import LayerOption, MixedPrecision
from lowbit.config.specs import Rule, TensorOverride
from lowbit.errors import ConfigError, PlanError, did_you_mean
from lowbit.evaluate.runner import (
    ReferenceSample,
    Run,
    compared,
    output_names,
    reference_samples,
)
from lowbit.graph.editing import is_constant
from lowbit.graph.naming import names_of, operator_name, tensor_name
from lowbit.graph.session import Array, Feed
from lowbit.numerics.metrics import DISTANCES, Metric
from lowbit.ops.linear import LAYERS
from lowbit.pipeline import stages
from lowbit.pipeline.pipeline import Pipeline
from lowbit.planning.plan import Plan
from lowbit.planning.planner import make_plan
from lowbit.planning.rules import nodes_between
from lowbit.search.boundaries import find_boundaries
from lowbit.search.candidates import Candidates, Setting, run_candidates
from lowbit.search.sensitivity_file import (
    LayerSensitivity,
    MixedPrecisionResult,
    read_sensitivities,
    write_sensitivities,
)
from lowbit.state import Calibrated, Planned, Prepared, Quantized, Transformed, extended
from lowbit.store import content_key

_REST = "__ungrouped__"

Changes = Sequence[tuple[str, LayerOption]]
"""The new scheme of each layer that changes."""

_Candidate = tuple[str, tuple[str, ...]]
"""A candidate: its name, and the layers that change together."""


def search_by_sensitivity(
    pipeline: Pipeline, state: Quantized, config: MixedPrecision, metric: Metric | None
) -> tuple[Quantized, MixedPrecisionResult]:
    """Return the model with layers in other formats, and why these.

    ``metric`` is a distance of one's own, instead of the one that is named.
    """
    search = _Search(pipeline, state, config, metric or DISTANCES[config.metric])
    result = search.decide()
    return search.finished(search.changes(result)), result


class _Search:
    """One search over one model."""

    def __init__(
        self, pipeline: Pipeline, base: Quantized, config: MixedPrecision, metric: Metric
    ) -> None:
        self._pipeline, self._base, self._config, self._metric = pipeline, base, config, metric
        self._nodes = {n.name: n for n in base.adapted.graph if n.name}
        outputs = output_names(base.adapted)
        if config.output >= len(outputs):
            raise ConfigError(
                f"mixed_precision.output is {config.output}, but the model has {len(outputs)} "
                f"outputs: {', '.join(outputs)}"
            )
        self._output = outputs[config.output]
        self._samples = self._reference(itertools.islice(self._feeds(), config.data_size))
        self._stats = base.stats
        self._trials = Candidates(self._setting())

    def decide(self) -> MixedPrecisionResult:
        """Measure every layer, and change them one after another as far as is allowed."""
        config = self._config
        baseline = self._score(())
        result = MixedPrecisionResult(metric=config.metric, baseline=baseline, score=baseline)
        if config.threshold and _is_settled(baseline, config):
            return msgspec.structs.replace(result, note=_settled_note(result, config))
        candidates = list(self._candidates())
        self._complete_statistics(candidates)
        self._trials = Candidates(self._setting())
        ranked = self._ranked(candidates)
        if config.threshold is None:
            return msgspec.structs.replace(result, layers=ranked, note="measured only")
        return self._changed(msgspec.structs.replace(result, layers=ranked))

    def changes(self, result: MixedPrecisionResult) -> Changes:
        """Return what each layer that is to change becomes."""
        return tuple(
            (node, self._config.options[row.option])
            for row in result.layers
            if row.changed
            for node in row.nodes
        )

    def with_changes(self, changes: Changes) -> Quantized:
        """Return the model with these layers in other formats."""
        if not changes:
            return self._base
        config = self._config_with(changes)
        planned = stages.plan(extended(self._base, Prepared, config=config))
        return self._pipeline.finish(stages.with_stats(planned, self._stats))

    def finished(self, changes: Changes) -> Quantized:
        """Return the same, with requantization pairs at format boundaries if asked for."""
        base = self._base
        if not self._config.requantize or not changes:
            return self.with_changes(changes)
        found = find_boundaries(base.adapted.graph, base.plan, changes)
        config = msgspec.structs.replace(
            self._config_with(changes),
            tensors=(*base.config.tensors, *found.tensors),
            requantize=(*base.config.requantize, *found.requantize),
        )
        planned = self._pipeline.planned(extended(base, Transformed, config=config))
        known = dict(self._stats.tensors)
        # Under its second name a tensor has the same numbers.
        known |= {row.name: known[row.tensor] for row in found.requantize if row.tensor in known}
        stats = self._completed(planned, known)
        return self._pipeline.finish(stages.with_stats(planned, stats))

    def _changed(self, result: MixedPrecisionResult) -> MixedPrecisionResult:
        """Return the result with as many layers changed as the threshold allows."""
        config, rows = self._config, list(result.layers)
        score = result.baseline
        allowed = [i for i, row in enumerate(rows) if row.enabled and self._is_ranked(i)]
        for index in allowed[: config.most]:
            row = rows[index]
            rows[index] = msgspec.structs.replace(row, changed=True)
            tried = msgspec.structs.replace(result, layers=tuple(rows))
            # Without a threshold nothing depends on the score in between.
            if not config.threshold:
                continue
            after = self._score(self.changes(tried))
            if config.objective == "speed" and after > config.threshold:
                rows[index] = row
                break
            score = after
            rows[index] = msgspec.structs.replace(rows[index], after=after)
            if config.objective == "quality" and after <= config.threshold:
                break
        result = msgspec.structs.replace(result, layers=tuple(rows), score=score)
        if config.threshold:
            return result
        return msgspec.structs.replace(result, score=self._score(self.changes(result)))

    def _is_ranked(self, index: int) -> bool:
        config = self._config
        return index not in config.not_ranks and (not config.ranks or index in config.ranks)

    def _ranked(self, candidates: Sequence[_Candidate]) -> tuple[LayerSensitivity, ...]:
        config, path = self._config, self._config.cache
        known = None if path is None else read_sensitivities(path, self._base, config)
        if known is not None:
            return known
        rows = self._measured(candidates)
        ranked = tuple(sorted(rows, key=lambda row: row.score))
        if path is not None:
            write_sensitivities(path, ranked, self._base, config)
        return ranked

    def _measured(self, candidates: Sequence[_Candidate]) -> list[LayerSensitivity]:
        """Return how far the output is with only these layers in each option they have."""
        options = [(pair, index) for pair in candidates for index in self._options_of(pair[1])]
        changes = [
            [(node, self._config.options[index]) for node in nodes] for (_, nodes), index in options
        ]
        scores = iter(self._scores([name for (name, _), _ in options], changes))
        rows: list[LayerSensitivity] = []
        for name, nodes in candidates:
            found = {index: next(scores) for index in self._options_of(nodes)}
            self._pipeline.clock.tell("search", len(rows) + 1, len(candidates))
            best = min(found, key=lambda i: found[i])
            rows.append(
                LayerSensitivity(
                    name=name,
                    nodes=nodes,
                    option=best,
                    score=found[best],
                    scores=tuple(found.values()),
                )
            )
        return rows

    def _scores(self, names: Sequence[str], changes: Sequence[Changes]) -> Iterator[float]:
        """Yield the scores of candidates, those of an earlier run from the store."""
        setting = self._setting()
        configs = [self._config_with(some) for some in changes]
        digest = setting.digest() if self._pipeline.store is not None else None
        keys = [self._key(digest, config) for config in configs]
        known = [self._kept(key) for key in keys]
        rows = zip(names, configs, known, strict=True)
        new = [(name, config) for name, config, score in rows if score is None]
        outputs = iter(run_candidates(setting, new, self._config.workers))
        for key, score in zip(keys, known, strict=True):
            if score is not None:
                yield score
                continue
            found = self._distance(next(outputs))
            if self._pipeline.store is not None and key is not None:
                self._pipeline.store.put(key, found.hex().encode())
            yield found

    def _key(self, digest: str | None, config: QuantConfig) -> str | None:
        metric = self._config.metric
        if digest is None or self._metric is not DISTANCES[metric]:
            return None  # what a metric of one's own gives depends on its code
        return content_key("sensitivity", digest, config_json(config), metric)

    def _kept(self, key: str | None) -> float | None:
        store = self._pipeline.store
        data = None if store is None or key is None else store.get(key)
        return None if data is None else float.fromhex(data.decode())

    def _setting(self) -> Setting:
        base = extended(self._base, Calibrated, stats=self._stats)
        return Setting(base, self._output, [sample.feed for sample in self._samples])

    def _distance(self, outputs: Sequence[Array]) -> float:
        want = [[sample.outputs[self._output]] for sample in self._samples]
        return float(self._metric(want, [[array] for array in outputs]))

    def _options_of(self, nodes: Iterable[str]) -> list[int]:
        options = self._config.options
        own = [i for i, o in enumerate(options) if any(self._is_named(n, o.layers) for n in nodes)]
        return own or [i for i, o in enumerate(options) if not o.layers] or [0]

    def _candidates(self) -> Iterator[_Candidate]:
        config = self._config
        for words in (config.include, config.exclude, *(o.layers for o in config.options)):
            self._check_names(words)
        layers = [name for name in self._nodes if self._is_candidate(name)]
        if not config.subgraphs:
            yield from ((name, (name,)) for name in layers)
            return
        left = dict.fromkeys(layers)
        for subgraph in config.subgraphs:
            graph = self._base.adapted.graph
            inside = {n.name for n in nodes_between(graph, subgraph.start, subgraph.end)}
            found = tuple(name for name in left if name in inside)
            left = {name: None for name in left if name not in inside}
            if found:
                yield subgraph.name, found
        if left:
            yield _REST, tuple(left)

    def _is_candidate(self, name: str) -> bool:
        config, node = self._config, self._nodes[name]
        if operator_name(node) not in (config.op_types or LAYERS):
            return False
        if self._is_named(name, config.exclude):
            return False
        if config.include and not self._is_named(name, config.include):
            return False
        if any(row.node == name for row in self._base.plan.float_nodes):
            return False
        inputs = _activations(node)
        return not (config.unshared_inputs and inputs and len(inputs[0].uses()) > 1)

    def _is_named(self, name: str, words: Sequence[str]) -> bool:
        return any(word in words for word in names_of(self._nodes[name]))

    def _check_names(self, words: Sequence[str]) -> None:
        known = [name for node in self._nodes.values() for name in names_of(node)]
        for word in words:
            if word not in known:
                raise PlanError(f"no node is called {word!r}{did_you_mean(word, known)}")

    def _config_with(self, changes: Changes) -> QuantConfig:
        config = self._base.config
        rules, tensors = [], {}
        for name, option in changes:
            if option.weight is not None or option.bias is not None:
                pattern = f"re:^{re.escape(name)}$"
                rules.append(Rule(name=pattern, weight=option.weight, bias=option.bias))
            tensors.update({t.tensor: t for t in self._overrides(self._nodes[name], option)})
        return msgspec.structs.replace(
            config,
            rules=(*config.rules, *rules),
            tensors=(*config.tensors, *tensors.values()),
            mixed_precision=None,
        )

    def _overrides(self, node: ir.Node, option: LayerOption) -> Iterator[TensorOverride]:
        sides = ((option.inputs, _activations(node)), (option.outputs, list(node.outputs)))
        for spec, values in sides:
            for value in values if spec is not None else ():
                for name in self._sharing(tensor_name(value), self._base.plan):
                    yield TensorOverride(tensor=name, spec=spec, optional=True)

    def _sharing(self, name: str, plan: Plan) -> list[str]:
        """Return the tensor and, if they are to change along, those with the same scale."""
        if self._config.sharing == "unshare":
            return [name]
        leaders = {row.name: row.leader for row in plan.activations()}
        leader = leaders.get(name, name)
        return [name, *(other for other, its in leaders.items() if its == leader and other != name)]

    def _complete_statistics(self, candidates: Sequence[_Candidate]) -> None:
        """Collect what other formats need to know of tensors that had no scale before."""
        every = [(n, o) for _, nodes in candidates for n in nodes for o in self._config.options]
        base, config = self._base, self._config_with(every)
        plan = make_plan(base.adapted, config, base.target, base.operators, base.head)
        self._stats = self._completed(extended(base, Planned, plan=plan), base.stats.tensors)

    def _completed(self, state: Planned, known: Mapping[str, TensorStats]) -> Stats:
        """Return statistics of all that a plan needs, collected where they are not known."""
        stats = dataclasses.replace(self._base.stats, tensors=known)
        if all(name in known for name in state.plan.observed()):
            return stats
        more = self._pipeline.calibrated(state, self._feeds).stats
        return dataclasses.replace(stats, tensors={**more.tensors, **known})

    def _score(self, changes: Changes) -> float:
        if changes:
            return self._distance(self._trials.outputs(self._config_with(changes)))
        run = Run.quantized_model(self._base.emitted.model, [self._output])
        pairs = compared(run, self._samples)
        return self._distance([got[self._output] for _, got in pairs])

    def _feeds(self) -> Iterable[Feed]:
        samples = self._base.samples
        if samples is None:
            raise ConfigError("mixed precision is measured on samples: give data")
        return samples.calibration()

    def _reference(self, feeds: Iterable[Feed]) -> list[ReferenceSample]:
        model = self._base.float_model
        # Exact, as the models that are measured by it.
        run = dataclasses.replace(Run.float_model(model, [self._output]), optimize="none")
        return list(reference_samples(run, feeds))


def _activations(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None and not is_constant(v)]


def _is_settled(baseline: float, config: MixedPrecision) -> bool:
    """Whether there is nothing to win before anything changes."""
    threshold = config.threshold or 0.0
    return baseline > threshold if config.objective == "speed" else baseline <= threshold


def _settled_note(result: MixedPrecisionResult, config: MixedPrecision) -> str:
    word = "further than" if config.objective == "speed" else "as near as"
    return f"nothing changes: {result.baseline:.4g} is {word} {config.threshold:g} already"
