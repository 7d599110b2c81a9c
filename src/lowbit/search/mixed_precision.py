"""Mixed precision: measure what each layer does to the output in another format, then decide once.

The decision is a value; what follows from it is a configuration with a rule for each layer that
changes, from which the model is built as from any other.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.calibrate.statistics import Stats, TensorStats
from lowbit.config.config import QuantConfig
from lowbit.config.mixed_precision import LayerOption, MixedPrecision
from lowbit.config.specs import Rule, TensorOverride
from lowbit.errors import ConfigError, PlanError, did_you_mean
from lowbit.graph.editing import is_constant
from lowbit.graph.naming import names_of, tensor_name
from lowbit.graph.session import session
from lowbit.numerics.metrics import DISTANCES, Metric, Outputs
from lowbit.pipeline.building import Builder, Built, emit
from lowbit.pipeline.preparing import Prepared, prepare
from lowbit.planning import Plan, make_plan
from lowbit.planning.rules import nodes_between
from lowbit.search.boundaries import find_meetings
from lowbit.search.sensitivity_file import Measured, Mix, read_measured, write_measured

_REST = "__ungrouped__"


def mixed(
    builder: Builder, built: Built, mixing: MixedPrecision, metric: Metric | None
) -> tuple[Built, Mix]:
    """Return the model built with layers in other formats, and why these.

    ``metric`` is a distance of one's own, instead of the one that is named.
    """
    search = _Search(builder, built, mixing, metric or DISTANCES[mixing.metric])
    with builder.clock.stage("mix"):
        mix = search.decide()
        return search.finished(search.changes(mix)), mix


class _Search:
    """One search over one model."""

    def __init__(
        self, builder: Builder, base: Built, mixing: MixedPrecision, metric: Metric
    ) -> None:
        self._builder, self._base, self._mixing, self._metric = builder, base, mixing, metric
        self._nodes = {n.name: n for n in base.ready.adapted.graph if n.name}
        outputs = [tensor_name(v) for v in base.ready.adapted.graph.outputs]
        if mixing.output >= len(outputs):
            raise ConfigError(
                f"mix.output is {mixing.output}, but the model has {len(outputs)} outputs: "
                f"{', '.join(outputs)}"
            )
        self._output = outputs[mixing.output]
        feeds = itertools.islice(builder.samples.calibration(), mixing.data_size)
        self._feeds = list(feeds)
        self._want = self._run(base.ready.equalized.model)
        self._stats = base.stats

    def decide(self) -> Mix:
        """Measure every layer, and take them one after another as far as is allowed."""
        mixing = self._mixing
        baseline = self._score(())
        mix = Mix(metric=mixing.metric, baseline=baseline, score=baseline)
        if mixing.threshold and _is_settled(baseline, mixing):
            return msgspec.structs.replace(mix, note=_settled_note(mix, mixing))
        candidates = list(self._candidates())
        self._need_statistics(candidates)
        ranked = self._ranked(candidates)
        if mixing.threshold is None:
            return msgspec.structs.replace(mix, layers=ranked, note="measured only")
        return self._taken(msgspec.structs.replace(mix, layers=ranked))

    def changes(self, mix: Mix) -> tuple[tuple[str, LayerOption], ...]:
        """Return what each layer that is to change becomes."""
        return tuple(
            (node, self._mixing.options[row.option])
            for row in mix.layers
            if row.taken
            for node in row.nodes
        )

    def built_with(self, changes: Sequence[tuple[str, LayerOption]]) -> Built:
        """Return the model with these layers in other formats."""
        if not changes:
            return self._base
        base = self._base
        config = self._config_with(changes)
        plan = make_plan(base.ready.adapted, config, base.ready.target)
        return self._builder.solve(config, base.ready, plan, self._stats)

    def finished(self, changes: Sequence[tuple[str, LayerOption]]) -> Built:
        """Return the same, with a second pair where formats meet if that is asked for."""
        base = self._base
        if not self._mixing.dual or not changes:
            return self.built_with(changes)
        met = find_meetings(base.ready.adapted.graph, base.plan, changes)
        config = msgspec.structs.replace(
            self._config_with(changes),
            tensors=(*base.config.tensors, *met.tensors),
            requantize=(*base.config.requantize, *met.requantize),
        )
        ready = prepare(
            self._builder.loaded, config, equalized=base.ready.equalized, target=base.ready.target
        )
        plan = make_plan(ready.adapted, config, ready.target)
        known = dict(self._stats.tensors)
        # Under its second name a tensor has the same numbers.
        known |= {h.name: known[h.tensor] for h in met.requantize if h.tensor in known}
        return self._builder.solve(config, ready, plan, self._completed(ready, plan, known))

    def _taken(self, mix: Mix) -> Mix:
        """Return the mix with as many layers as the threshold allows."""
        mixing, rows = self._mixing, list(mix.layers)
        score = mix.baseline
        allowed = [i for i, row in enumerate(rows) if row.enabled and self._has_place(i)]
        for index in allowed[: mixing.most]:
            row = rows[index]
            rows[index] = msgspec.structs.replace(row, taken=True)
            tried = msgspec.structs.replace(mix, layers=tuple(rows))
            # Without a threshold nothing depends on the score in between.
            if not mixing.threshold:
                continue
            after = self._score(self.changes(tried))
            if mixing.goal == "speed" and after > mixing.threshold:
                rows[index] = row
                break
            score = after
            rows[index] = msgspec.structs.replace(rows[index], after=after)
            if mixing.goal == "quality" and after <= mixing.threshold:
                break
        mix = msgspec.structs.replace(mix, layers=tuple(rows), score=score)
        if mixing.threshold:
            return mix
        return msgspec.structs.replace(mix, score=self._score(self.changes(mix)))

    def _has_place(self, index: int) -> bool:
        mixing = self._mixing
        return index not in mixing.not_ranks and (not mixing.ranks or index in mixing.ranks)

    def _ranked(self, candidates: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[Measured, ...]:
        mixing = self._mixing
        path = mixing.cache
        known = None if path is None else read_measured(path, self._base, mixing)
        if known is not None:
            return known
        with concurrent.futures.ThreadPoolExecutor(mixing.workers) as pool:
            rows = list(pool.map(lambda pair: self._measured(*pair), candidates))
        ranked = tuple(sorted(rows, key=lambda row: row.score))
        if path is not None:
            write_measured(path, ranked, self._base, mixing)
        return ranked

    def _measured(self, name: str, nodes: tuple[str, ...]) -> Measured:
        """Return how far the output is with these layers alone in each option they have."""
        options = self._mixing.options
        indices = self._options_of(nodes)
        scores = {i: self._score([(node, options[i]) for node in nodes]) for i in indices}
        best = min(scores, key=lambda i: scores[i])
        return Measured(
            name=name, nodes=nodes, option=best, score=scores[best], scores=tuple(scores.values())
        )

    def _options_of(self, nodes: Iterable[str]) -> list[int]:
        options = self._mixing.options
        own = [i for i, o in enumerate(options) if any(self._is_named(n, o.layers) for n in nodes)]
        return own or [i for i, o in enumerate(options) if not o.layers] or [0]

    def _candidates(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        mixing = self._mixing
        for words in (mixing.include, mixing.exclude, *(o.layers for o in mixing.options)):
            self._check_names(words)
        layers = [name for name in self._nodes if self._is_candidate(name)]
        if not mixing.subgraphs:
            yield from ((name, (name,)) for name in layers)
            return
        left = dict.fromkeys(layers)
        for part in mixing.subgraphs:
            graph = self._base.ready.adapted.graph
            inside = {n.name for n in nodes_between(graph, part.start, part.end)}
            found = tuple(name for name in left if name in inside)
            left = {name: None for name in left if name not in inside}
            if found:
                yield part.name, found
        if left:
            yield _REST, tuple(left)

    def _is_candidate(self, name: str) -> bool:
        mixing, node = self._mixing, self._nodes[name]
        if node.op_type not in mixing.op_types or self._is_named(name, mixing.exclude):
            return False
        if mixing.include and not self._is_named(name, mixing.include):
            return False
        if any(row.node == name for row in self._base.plan.float_nodes):
            return False
        inputs = _activations(node)
        return not (mixing.unshared_inputs and inputs and len(inputs[0].uses()) > 1)

    def _is_named(self, name: str, words: Sequence[str]) -> bool:
        return any(word in words for word in names_of(self._nodes[name]))

    def _check_names(self, words: Sequence[str]) -> None:
        known = [name for node in self._nodes.values() for name in names_of(node)]
        for word in words:
            if word not in known:
                raise PlanError(f"no node is called {word!r}{did_you_mean(word, known)}")

    def _config_with(self, changes: Sequence[tuple[str, LayerOption]]) -> QuantConfig:
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
        parts = ((option.inputs, _activations(node)), (option.outputs, list(node.outputs)))
        for spec, values in parts:
            for value in values if spec is not None else ():
                for name in self._sharing(tensor_name(value), self._base.plan):
                    yield TensorOverride(tensor=name, spec=spec, optional=True)

    def _sharing(self, name: str, plan: Plan) -> list[str]:
        """Return the tensor and, if they are to change along, those with the same scale."""
        if self._mixing.sharing == "unshare":
            return [name]
        leaders = {row.name: row.leader for row in plan.activations()}
        leader = leaders.get(name, name)
        return [name, *(other for other, its in leaders.items() if its == leader and other != name)]

    def _need_statistics(self, candidates: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """Collect what other formats need to know of tensors that had no scale before."""
        every = [(n, o) for _, nodes in candidates for n in nodes for o in self._mixing.options]
        ready = self._base.ready
        plan = make_plan(ready.adapted, self._config_with(every), ready.target)
        self._stats = self._completed(ready, plan, self._base.stats.tensors)

    def _completed(self, ready: Prepared, plan: Plan, known: Mapping[str, TensorStats]) -> Stats:
        """Return statistics of all that a plan needs, collected where they are not known."""
        stats = dataclasses.replace(self._base.stats, tensors=known)
        if all(name in known for name in plan.observed()):
            return stats
        more = self._builder.collect(ready, plan, self._builder.samples.calibration)
        return dataclasses.replace(stats, tensors={**more.tensors, **known})

    def _score(self, changes: Sequence[tuple[str, LayerOption]]) -> float:
        return float(self._metric(self._want, self._run(emit(self.built_with(changes)))))

    def _run(self, model: ir.Model) -> Outputs:
        with session(model, name="the model") as running:
            # Copies: an array of onnxruntime's keeps all memory of its session.
            return [[np.array(a) for a in running.run([self._output], f)] for f in self._feeds]


def _activations(node: ir.Node) -> list[ir.Value]:
    return [v for v in node.inputs if v is not None and not is_constant(v)]


def _is_settled(baseline: float, mixing: MixedPrecision) -> bool:
    """Whether there is nothing to win before anything changes."""
    threshold = mixing.threshold or 0.0
    return baseline > threshold if mixing.goal == "speed" else baseline <= threshold


def _settled_note(mix: Mix, mixing: MixedPrecision) -> str:
    word = "further than" if mixing.goal == "speed" else "as near as"
    return f"nothing changes: {mix.baseline:.4g} is {word} {mixing.threshold:g} already"
