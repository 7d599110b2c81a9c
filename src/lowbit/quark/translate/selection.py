"""Which nodes and tensors a configuration speaks of, found in the model by name.

Quark's lists of names become exact patterns of lowbit's. A name the model does not have is an
error with the nearest one, or a warning where Quark's script would have gone on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from lowbit.config.specs import Rule, Spec, TensorOverride
from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError, say


class Nodes:
    """The nodes of a model by what a user may call them."""

    def __init__(self, model: ir.Model, *, lenient: bool) -> None:
        self.nodes = tuple(model.graph)
        constants = (n.outputs[0].name for n in self.nodes if n.op_type == "Constant")
        self.constants = {name for name in (*model.graph.initializers, *constants) if name}
        self.tensors = {t for node in self.nodes for t in (*inputs_of(node), *outputs_of(node))}
        self._lenient = lenient
        self._by_name = {node.name: node for node in self.nodes if node.name}

    def op_types(self) -> tuple[str, ...]:
        """Return the operator types of the model, each once."""
        return tuple(dict.fromkeys(node.op_type for node in self.nodes))

    def patterns(self, names: Iterable[str], what: str) -> tuple[str, ...]:
        """Return lowbit's patterns for exact names and for Quark's regular expressions."""
        found = []
        for name in names:
            if name in self._by_name:
                found.append(exactly(name))
            elif _is_expression(name):
                self._need_match(name, what)
                found.append(f"re:{name}")
            else:
                self._missing(name, what)
        return tuple(found)

    def of_types(self, types: Iterable[str]) -> tuple[ir.Node, ...]:
        """Return the nodes of some operator types."""
        wanted = set(types)
        return tuple(node for node in self.nodes if node.op_type in wanted)

    def named(self, names: Iterable[str], what: str) -> tuple[ir.Node, ...]:
        """Return the nodes of some names, or that match some regular expressions."""
        patterns = self.patterns(names, what)
        expressions = [re.compile(pattern.removeprefix("re:")) for pattern in patterns]
        return tuple(n for n in self.nodes if any(e.search(n.name or "") for e in expressions))

    def outside(self, first: Sequence[str], last: Sequence[str]) -> tuple[str, ...]:
        """Return a pattern for the nodes before ``first`` and behind ``last``, if there are any."""
        before = self._reach(self.named(first, "input_nodes"), forward=False)
        behind = self._reach(self.named(last, "output_nodes"), forward=True)
        return any_of([*before, *behind])

    def known_tensor(self, name: str, what: str) -> bool:
        """Whether the model has a tensor; if not, that is said."""
        if name not in self.tensors:
            self._complain(f"{what} names a tensor {name!r} that the model does not have", name)
        return name in self.tensors

    def _reach(self, seeds: Iterable[ir.Node], *, forward: bool) -> list[str]:
        """Return the names of nodes up or down the graph from the seeds, without them."""
        readers: dict[str, list[ir.Node]] = {}
        for node in self.nodes:
            for name in inputs_of(node) if forward else outputs_of(node):
                readers.setdefault(name, []).append(node)
        start = list(seeds)
        seen = {id(node) for node in start}
        found: list[str] = []
        while start:
            node = start.pop()
            for name in outputs_of(node) if forward else inputs_of(node):
                for other in readers.get(name, ()):
                    if id(other) not in seen:
                        seen.add(id(other))
                        start.append(other)
                        found.append(other.name or "")
        return [name for name in found if name]

    def _need_match(self, expression: str, what: str) -> None:
        try:
            compiled = re.compile(expression)
        except re.error as error:
            raise QuarkConfigError(f"{what}: {expression!r} is no expression: {error}") from error
        if not any(compiled.search(name) for name in self._by_name):
            raise QuarkConfigError(f"{what}: no node matches {expression!r}")

    def _missing(self, name: str, what: str) -> None:
        self._complain(f"{what} names a node {name!r} that the model does not have", name)

    def _complain(self, message: str, name: str) -> None:
        near = did_you_mean(name, [*self._by_name, *self.tensors])
        if not self._lenient:
            raise QuarkConfigError(f"{message}{near}")
        say(f"{message}{near} (it is ignored)")


def inputs_of(node: ir.Node) -> list[str]:
    """Return the names of what a node reads."""
    return [value.name for value in node.inputs if value is not None and value.name]


def outputs_of(node: ir.Node) -> list[str]:
    """Return the names of what a node writes."""
    return [value.name for value in node.outputs if value.name]


def exactly(name: str) -> str:
    """Return a pattern that matches one name and nothing else."""
    return f"re:^{re.escape(name)}$"


def any_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return one pattern that matches all of the names, or none for no names.

    One, because some of the nodes may be gone once the model is in its normal form.
    """
    words = "|".join(re.escape(name) for name in names)
    return (f"re:^({words})$",) if words else ()


def subgraph_rules(subgraphs: Iterable[Any]) -> tuple[Rule, ...]:
    """Return rules that keep subgraphs, given as pairs of first and last nodes, in float."""
    rules = []
    for subgraph in subgraphs:
        if len(subgraph) != 2:
            raise QuarkConfigError(
                f"a subgraph to exclude is {subgraph!r}; expected ([first nodes], [last nodes])"
            )
        first, last = subgraph
        rules.append(
            Rule(
                start=tuple(exactly(name) for name in first),
                end=tuple(exactly(name) for name in last),
                exclude=True,
            )
        )
    return tuple(rules)


def unquantized_outputs(nodes: Iterable[ir.Node]) -> tuple[TensorOverride, ...]:
    """Return overrides that leave the outputs of some nodes in float."""
    names = dict.fromkeys(name for node in nodes for name in outputs_of(node))
    return tuple(TensorOverride(tensor=name, keep="float", optional=True) for name in names)


def tensor_overrides(
    given: Mapping[str, Any], nodes: Nodes, start: Spec
) -> tuple[TensorOverride, ...]:
    """Return the exceptions by tensor that Quark's dictionary means."""
    from lowbit.quark.translate.overrides import override_of

    return tuple(
        override_of(name, entry, start)
        for name, entry in given.items()
        if nodes.known_tensor(name, "TensorQuantOverrides")
    )


def _is_expression(name: str) -> bool:
    """Whether Quark takes a name for a regular expression."""
    return name.startswith("^") and ".*" in name
