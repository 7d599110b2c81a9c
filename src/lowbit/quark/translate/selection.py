"""Which nodes and tensors a configuration speaks of, found in the model by name, and their exceptions.

Quark's lists of names become exact patterns of lowbit's. A name the model does not have is an
error with the nearest one, or a warning where Quark's script would have gone on. The newer API gives
other specs to named nodes or operator types; overrides of single tensors have onnxruntime's words.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.config.methods import MinMax
from lowbit.config.mixed_precision import LayerOption
from lowbit.config.specs import AccumulatorBias, BiasSpec, IntegerSpec, Rule, Spec, TensorOverride
from lowbit.errors import did_you_mean
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.spec import QLayerConfig, QTensorConfig
from lowbit.quark.translate.specs import float_spec, integer_format, is_float, layer_spec


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

    def need(self, names: Iterable[str], what: str) -> None:
        """Raise if the model lacks a node of one of the names, lenient or not."""
        for name in names:
            if name not in self._by_name:
                raise QuarkConfigError(
                    f"{what} names a node {name!r} that the model does not have"
                    f"{did_you_mean(name, tuple(self._by_name))}"
                )

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
        """Return a pattern for the nodes before ``first`` and after ``last``, if there are any."""
        before = self._reach(self.named(first, "input_nodes"), forward=False)
        after = self._reach(self.named(last, "output_nodes"), forward=True)
        return any_of([*before, *after])

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


def subgraph_rules(subgraphs: Iterable[Any], nodes: Nodes) -> tuple[Rule, ...]:
    """Return rules that keep subgraphs, given as pairs of first and last nodes, in float."""
    rules = []
    for subgraph in subgraphs:
        if len(subgraph) != 2:
            raise QuarkConfigError(
                f"a subgraph to exclude is {subgraph!r}; expected ([first nodes], [last nodes])"
            )
        first, last = subgraph
        nodes.need([*first, *last], "subgraphs_to_exclude")
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
    return tuple(
        override_of(name, entry, start)
        for name, entry in given.items()
        if nodes.known_tensor(name, "TensorQuantOverrides")
    )


def _is_expression(name: str) -> bool:
    """Whether Quark takes a name for a regular expression."""
    return name.startswith("^") and ".*" in name


@dataclasses.dataclass(frozen=True, slots=True)
class LayerException:
    """The scheme of some nodes, by name or by operator type; ``None``: they stay in float."""

    layer: QLayerConfig | None
    names: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Exceptions:
    """Rules for weights and biases by node, overrides for activations by tensor.

    ``layers`` has the formats of each node that is one, for what finds the boundaries between them.
    """

    rules: tuple[Rule, ...] = ()
    tensors: tuple[TensorOverride, ...] = ()
    layers: tuple[tuple[str, LayerOption], ...] = ()


def find_exceptions(
    given: Iterable[LayerException], nodes: Nodes, activation: Spec, weight: Spec
) -> Exceptions:
    """Return what the exceptions mean for the nodes of a model."""
    rules: list[Rule] = []
    tensors: dict[str, TensorOverride] = {}
    layers: dict[str, LayerOption] = {}
    for exception in given:
        found = (
            *nodes.named(exception.names, "specific_layer_config"),
            *nodes.of_types(exception.op_types),
        )
        if exception.layer is None:
            rules += [Rule(name=exactly(node.name or ""), exclude=True) for node in found]
            continue
        for node in found:
            rules += _rules(node, exception.layer, weight)
            tensors.update(_tensors(node, exception.layer, activation, nodes.constants))
            layers[node.name or ""] = layer_option(exception.layer, activation, weight)
    return Exceptions(tuple(rules), tuple(tensors.values()), tuple(layers.items()))


def layer_option(layer: QLayerConfig, activation: Spec, weight: Spec) -> LayerOption:
    """Return the formats a layer asks for."""
    inputs, outputs = layer.inputs(), layer.output_tensors
    return LayerOption(
        inputs=None if inputs is None else layer_spec(activation, inputs),
        weight=None if layer.weight is None else layer_spec(weight, layer.weight),
        bias=None if layer.bias is None else layer_bias(weight, layer.bias),
        outputs=None if outputs is None else layer_spec(activation, outputs),
    )


def layer_bias(weight: Spec, asked: QTensorConfig) -> BiasSpec:
    """Return the spec of a bias: in its accumulator's scale, or its own."""
    if asked.data_type.__name__ in ("Int32", "UInt32"):
        return AccumulatorBias(repair=False, truncate_realigned=True)
    bias = layer_spec(weight, asked)
    if isinstance(bias, IntegerSpec):
        return msgspec.structs.replace(bias, per_channel=False, group_size=None)
    return bias


def _rules(node: ir.Node, layer: QLayerConfig, weight: Spec) -> list[Rule]:
    if layer.weight is None and layer.bias is None:
        return []
    spec = None if layer.weight is None else layer_spec(weight, layer.weight)
    bias = None if layer.bias is None else layer_bias(weight, layer.bias)
    return [Rule(name=exactly(node.name or ""), weight=spec, bias=bias)]


def _tensors(
    node: ir.Node, layer: QLayerConfig, activation: Spec, constants: set[str]
) -> dict[str, TensorOverride]:
    inputs = [name for name in inputs_of(node) if name not in constants]
    parts: Sequence[tuple[QTensorConfig | None, Sequence[str]]] = (
        (layer.inputs(), inputs),
        (layer.output_tensors, outputs_of(node)),
    )
    return {
        name: TensorOverride(tensor=name, spec=layer_spec(activation, spec), optional=True)
        for spec, names in parts
        if spec is not None
        for name in names
    }


_KEYS = ("quant_type", "symmetric", "reduce_range", "axis", "scale", "zero_point", "rmin", "rmax")


def override_of(name: str, entry: Any, given: Spec) -> TensorOverride:
    """Return what ``entry`` (a dictionary, or a list of one) asks for a tensor."""
    asked = _single(name, entry)
    kind = asked.get("quant_type")
    if kind is not None and is_float(kind):
        spec = float_spec(kind, MinMax(), scaled=False)
        return TensorOverride(tensor=name, spec=spec, optional=True)
    return _integers(name, asked, given)


def _integers(name: str, asked: dict[str, Any], given: Spec) -> TensorOverride:
    spec = given if isinstance(given, IntegerSpec) else IntegerSpec(format=IntegerFormat.INT8)
    if asked.get("quant_type") is not None:
        spec = msgspec.structs.replace(spec, format=integer_format(asked["quant_type"]))
    for key, field in (("symmetric", "symmetric"), ("reduce_range", "reduce_range")):
        if asked.get(key) is not None:
            spec = msgspec.structs.replace(spec, **{field: bool(asked[key])})
    if asked.get("axis") is not None:
        spec = msgspec.structs.replace(spec, per_channel=True)
    return TensorOverride(tensor=name, spec=spec, range=_range(name, asked, spec), optional=True)


def _single(name: str, entry: Any) -> dict[str, Any]:
    entries = entry if isinstance(entry, list) else [entry]
    if len(entries) != 1:
        raise NotSupportedError(
            f"TensorQuantOverrides[{name!r}] has {len(entries)} entries, one a channel; "
            "one a tensor is supported"
        )
    for key in entries[0]:
        if key not in _KEYS:
            near = did_you_mean(str(key), _KEYS)
            raise QuarkConfigError(f"TensorQuantOverrides[{name!r}] has no {key!r}{near}")
    return dict(entries[0])


def _range(name: str, asked: dict[str, Any], spec: IntegerSpec) -> tuple[float, float] | None:
    """Return the range that limits, or a scale and a zero point, mean."""
    if asked.get("rmin") is not None and asked.get("rmax") is not None:
        return float(asked["rmin"]), float(asked["rmax"])
    if asked.get("scale") is None:
        return None
    scale, zero = np.asarray(asked["scale"]), np.asarray(asked.get("zero_point", 0))
    if scale.size != 1 or zero.size != 1:
        raise NotSupportedError(
            f"TensorQuantOverrides[{name!r}] has {scale.size} scales; one is supported"
        )
    low, high = spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)
    step, offset = float(scale.item()), int(zero.item())
    return (low - offset) * step, (high - offset) * step
