"""Which scheme holds for which node: rules by type, name and subgraph; the last match wins."""

from __future__ import annotations

import dataclasses
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.specs import BiasSpec, Rule, Spec
from lowbit.errors import ConfigError, PlanError, did_you_mean
from lowbit.graph.naming import names_of


@dataclasses.dataclass(frozen=True, slots=True)
class Scheme:
    """The specs that hold for one node; ``excluded`` says why it has none.

    ``priority`` is the number of the rule that spoke last: where producer and consumers of a
    tensor differ, the higher one decides.
    """

    activation: Spec | None
    weight: Spec | None
    bias: BiasSpec | None
    excluded: str | None = None
    priority: int = 0


def choose_schemes(graph: ir.Graph, config: QuantConfig) -> Mapping[ir.Node, Scheme]:
    """Return the scheme of every node; raise for a rule that matches none."""
    rules = [*config.rules, *(Rule(name=glob, exclude=True) for glob in config.exclude)]
    start = Scheme(config.activation, config.weight, config.bias)
    schemes = dict.fromkeys(graph, start)
    if config.include:
        included = {n for glob in config.include for n in _matching(graph, Rule(name=glob))}
        left_out = dataclasses.replace(start, excluded="not among the included names")
        schemes = {node: start if node in included else left_out for node in graph}
    for priority, rule in enumerate(rules, start=1):
        for node in _matching(graph, rule):
            schemes[node] = _apply(schemes[node], rule, priority)
    return schemes


def matches_name(pattern: str, names: Iterable[str]) -> bool:
    """Whether a glob, or a regular expression after ``re:``, matches one of the names."""
    if pattern.startswith("re:"):
        try:
            expression = re.compile(pattern[3:])
        except re.error as error:
            raise ConfigError(f"{pattern!r} is not a regular expression: {error}") from error
        return any(expression.search(name) for name in names)
    return any(name == pattern or fnmatch.fnmatchcase(name, pattern) for name in names)


def _matching(graph: ir.Graph, rule: Rule) -> list[ir.Node]:
    inside = nodes_between(graph, rule.start, rule.end) if rule.start or rule.end else None
    exact = frozenset(rule.nodes)
    found = [
        node
        for node in graph
        if (rule.op_type is None or fnmatch.fnmatchcase(node.op_type, rule.op_type))
        and (rule.name is None or matches_name(rule.name, names_of(node)))
        and (not exact or not exact.isdisjoint(names_of(node)))
        and (inside is None or node in inside)
    ]
    if not found and not rule.optional:
        raise PlanError(_nothing_matched(graph, rule))
    return found


def _nothing_matched(graph: ir.Graph, rule: Rule) -> str:
    if rule.nodes and rule.name is None:
        known = [name for node in graph for name in names_of(node)]
        return _no_node(rule.nodes[0], known)
    if rule.name is not None:
        known = [name for node in graph for name in names_of(node)]
        return _no_node(rule.name, known)
    types = sorted({node.op_type for node in graph})
    word = rule.op_type or ""
    return f"the model has no {word} node{did_you_mean(word, types)} (it has {', '.join(types)})"


def _no_node(name: str, known: Sequence[str]) -> str:
    near = did_you_mean(name, known) or "; `lowbit plan MODEL --all` lists them"
    return f"no node is called {name!r}{near}"


def _apply(scheme: Scheme, rule: Rule, priority: int) -> Scheme:
    if rule.exclude:
        named = rule.name or rule.op_type or ", ".join(rule.nodes)
        pattern = named or f"{', '.join(rule.start)}..{', '.join(rule.end)}"
        why = rule.why or f"excluded by {pattern!r}"
        return dataclasses.replace(scheme, excluded=why, priority=priority)
    return Scheme(
        rule.activation or scheme.activation,
        rule.weight or scheme.weight,
        rule.bias or scheme.bias,
        priority=priority,
    )


def nodes_between(graph: ir.Graph, start: Iterable[str], end: Iterable[str]) -> set[ir.Node]:
    """Return the nodes on paths from a start node to an end node, both included."""
    starts = {node for name in start for node in _named(graph, name)}
    ends = {node for name in end for node in _named(graph, name)}
    after = _reach(starts, forward=True) if starts else set(graph)
    before = _reach(ends, forward=False) if ends else set(graph)
    return after & before


def _named(graph: ir.Graph, name: str) -> list[ir.Node]:
    return _matching(graph, Rule(name=name))


def _reach(seeds: set[ir.Node], *, forward: bool) -> set[ir.Node]:
    seen, stack = set(seeds), list(seeds)
    while stack:
        node = stack.pop()
        for other in node.successors() if forward else node.predecessors():
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen
