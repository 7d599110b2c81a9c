"""The quantized nodes of a graph that can be promoted, with their costs and the tensors between them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import onnx_ir as ir

from lowbit.config.methods import MinMax
from lowbit.config.specs import IntegerSpec, Rule, TensorOverride
from lowbit.evaluate.cost import NodeCost
from lowbit.numerics.formats import IntegerFormat
from lowbit.pipeline.preparing import prepare
from lowbit.scales.alignment import components
from lowbit.scales.ranges import scaled_range
from lowbit.search.regions import Choice, Region, runs_of
from lowbit.state import Planned, Prepared, Quantized, Transformed, extended

_SHARE_OF_ELEMENTS, _SHARE_OF_NODES, _EACH = 0.05, 0.05, 1e-3
"""The cost of all elements written, and of all nodes; a node costs at most its share of a few nodes."""


def wide_spec(state: Prepared) -> IntegerSpec | None:
    """Return 16-bit activations, if the target has them and the model has narrower ones."""
    spec, formats = state.config.activation, state.target.activation_formats
    if not isinstance(spec, IntegerSpec) or spec.format.bits >= 16:
        return None
    signed = spec.format in (IntegerFormat.INT8, IntegerFormat.INT4)
    wanted = IntegerFormat.INT16 if signed else IntegerFormat.UINT16
    found = next(
        (f for f in (wanted, IntegerFormat.INT16, IntegerFormat.UINT16) if f in formats), None
    )
    if found is None or state.target.power_of_two:
        return None
    return msgspec.structs.replace(spec, format=found, method=MinMax())


def exact_operators(state: Quantized) -> tuple[Rule, ...]:
    """Return a rule for nodes that the device computes otherwise than the float model does."""
    if not state.target.arithmetic:
        return ()
    skipped = (*state.config.skip_rewrites, *state.target.arithmetic)
    config = msgspec.structs.replace(state.config, skip_rewrites=skipped)
    plain = prepare(extended(state, Transformed, config=config))
    operators = {node.name: node.op_type for node in plain.adapted.graph}
    nodes = [
        str(node.name)
        for node in state.adapted.graph
        if operators.get(node.name, node.op_type) != node.op_type
    ]
    if not nodes:
        return ()
    why = "promoted: the device's approximation is too coarse for this model"
    return (Rule(nodes=tuple(nodes), exclude=True, why=why, optional=True),)


def rescaled_tensor(state: Quantized, name: str, factor: float) -> TensorOverride:
    """Return what gives a tensor its scale times a factor."""
    params = state.params.tensors[name]
    low, high = scaled_range(params, state.plan.by_name()[name].integer, factor)
    return TensorOverride(tensor=name, range=(low, high), optional=True)


def scale_groups(state: Planned) -> list[list[str]]:
    """Return the activations that have one scale, in their order.

    Those whose scale others tie to theirs are left out, and those whose range was asked for.
    """
    plan, rescaling = state.plan, state.config.rescaling
    # A centered tensor's lowest integer is what was zero: no other scale has that.
    centered = rescaling is not None and bool(rescaling.offsets)
    fitted = () if rescaling is None or centered else rescaling.ranges
    tied = {n for rule in ("lowest", "merged") for names in components(plan, rule) for n in names}
    found: dict[str, list[str]] = {}
    for tensor in plan.activations():
        if tensor.spec.is_integer and tensor.leader not in tied:
            found.setdefault(tensor.leader, []).append(tensor.name)
    planned = plan.by_name()
    return [
        members
        for leader, members in found.items()
        if planned[leader].range is None or leader in fitted
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class PromotionGraph:
    """The quantized nodes of a graph in their order, and which tensors lie between them."""

    nodes: tuple[str, ...]
    costs: tuple[float, ...]
    around: Mapping[str, Region]
    weights: Mapping[str, Region]

    @classmethod
    def of(cls, state: Quantized, costs: Mapping[str, NodeCost]) -> PromotionGraph:
        """Return that of a model."""
        plan, graph = state.plan, state.adapted.graph
        kept_float = {row.node for row in plan.float_nodes}
        planned = plan.by_name()
        nodes = [n for n in graph if n.name not in kept_float and _touches(n, planned)]
        order = {node: index for index, node in enumerate(nodes)}
        around: dict[str, set[int]] = {}
        weights: dict[str, set[int]] = {}
        for node, index in order.items():
            for value in (*node.inputs, *node.outputs):
                name = "" if value is None or value.name is None else value.name
                if name in planned and planned[name].role == "weight":
                    weights.setdefault(name, set()).add(index)
                elif name in planned:
                    around.setdefault(name, set()).add(index)
        return cls(
            tuple(str(node.name) for node in nodes),
            tuple(_cost(costs, nodes)),
            {name: frozenset(units) for name, units in around.items()},
            {name: frozenset(units) for name, units in weights.items()},
        )

    def in_float(self, region: Region) -> set[str]:
        """Return the tensors that are not quantized when a region computes in float."""
        tensors = itertools.chain(self.around.items(), self.weights.items())
        return {name for name, units in tensors if units <= region}

    def widened(self, region: Region) -> set[str]:
        """Return the activations that get 16 bits with a region."""
        return {name for name, units in self.around.items() if units & region}

    def all_in_float(self) -> Choice:
        """Return the choice of everything in float."""
        return Choice(in_float=frozenset(range(len(self.nodes))))

    def switched_off(self, choice: Choice) -> set[str]:
        """Return the tensors that are not quantized, or so finely that it does not show."""
        return self.in_float(choice.in_float) | self.widened(choice.wide)

    def rules(self, choice: Choice, wide: IntegerSpec | None, reason: str) -> tuple[Rule, ...]:
        """Return what asks for a choice: 16 bits of activations, and float."""
        found = []
        for spec, region in ((wide, choice.wide), (None, choice.in_float)):
            word = "in float" if spec is None else "with 16-bit activations"
            for run in runs_of(region):
                names = tuple(self.nodes[index] for index in run)
                why = f"promoted: {reason} {word}"
                found.append(
                    Rule(nodes=names, exclude=spec is None, activation=spec, why=why, optional=True)
                )
        return tuple(found)


def _touches(node: ir.Node, planned: Mapping[str, object]) -> bool:
    return any(v is not None and v.name in planned for v in (*node.inputs, *node.outputs))


def _cost(costs: Mapping[str, NodeCost], nodes: Sequence[ir.Node]) -> Iterator[float]:
    """Yield what each node costs: mostly multiply-adds, a little for traffic and for its number."""
    known = [costs.get(str(node.name), NodeCost(0, 0)) for node in nodes]
    products = sum(cost.multiply_adds for cost in known) or 1
    written = sum(cost.elements for cost in known) or 1
    each = min(_EACH, _SHARE_OF_NODES / max(1, len(known)))
    for cost in known:
        traffic = _SHARE_OF_ELEMENTS * cost.elements / written
        yield cost.multiply_adds / products + traffic + each
