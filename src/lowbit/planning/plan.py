"""The plan: every decision about placement, as a value that can be printed, edited and read back."""

from __future__ import annotations

import os
import pathlib
from typing import Literal

import msgspec
import onnx_ir as ir

from lowbit.config.extensible import decode_json
from lowbit.config.specs import (
    IntegerBias,
    IntegerSpec,
    Spec,
)
from lowbit.config.transforms import Rescaling
from lowbit.errors import PlanError, did_you_mean
from lowbit.ops.linear import linear_operator
from lowbit.planning.unquantized import why_nothing
from lowbit.targets.target import AlignRule, PairOrder

VERSION = 1


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common settings of the value types below."""


class TensorPlan(_Row, frozen=True, kw_only=True):
    """The decision for one quantized tensor.

    Attributes:
        name: The tensor.
        role: Whether it is computed or constant.
        spec: How it is quantized.
        axis: Channel axis of a per-channel constant, or the axis that blocks lie along.
        leader: The tensor whose parameters it uses; itself if it has its own.
        observe: The tensor whose statistics its range comes from.
        range: A range fixed beforehand, instead of statistics.
        headroom: The range holds at least so many times the largest numbers seen; ``None``: what the
            method of the spec chooses.
        consumers: The nodes that read an activation quantized; ``None``: all that read it.
        pairs: Which weights meet in kernels that add two products in 16 bits: their integers are such
            that none of these sums saturates.
        why: The reason, for people.
    """

    name: str
    role: Literal["activation", "weight"]
    spec: Spec
    axis: int | None = None
    leader: str
    observe: str
    range: tuple[float, float] | None = None
    headroom: float | None = None
    consumers: tuple[str, ...] | None = None
    pairs: tuple[PairOrder, ...] = ()
    why: str

    @property
    def integer(self) -> IntegerSpec:
        """The spec of a tensor that is known to become integers."""
        if not isinstance(self.spec, IntegerSpec):
            raise TypeError(f"{self.name!r} is {self.spec.describe()}, which is not an integer")
        return self.spec

    @property
    def is_calibrated(self) -> bool:
        """Whether the parameters of an activation follow from data."""
        own = self.range is None and self.leader == self.name
        return own and self.spec.calibration is not None


class BiasPlan(_Row, frozen=True, kw_only=True):
    """The decision for the integer bias of one node: its spec, and the scales it is tied to.

    Biases in other formats are constants like weights.

    ``repeats`` is how often a weight's scale per channel is repeated along the bias; ``channel_axis``
    is where the input's channels lie.
    """

    node: str
    tensor: str
    index: int
    spec: IntegerBias
    input: str
    weight: str
    factor: float = 1.0
    repeats: int = 1
    channel_axis: int = 1
    why: str


class AlignedGroup(_Row, frozen=True, kw_only=True):
    """Tensors whose parameters must be equal, because of one node."""

    node: str
    op_type: str
    rule: AlignRule
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class FloatNode(_Row, frozen=True, kw_only=True):
    """A node that computes in float, and why."""

    node: str
    op_type: str
    why: str


class Plan(_Row, frozen=True, kw_only=True):
    """All decisions made before any data is seen.

    ``rescaling``: how tensors are multiplied before; ranges of these are of what they are multiplied to.
    """

    version: int = VERSION
    preset: str
    target: str
    rescaling: Rescaling | None = None
    tensors: tuple[TensorPlan, ...]
    biases: tuple[BiasPlan, ...] = ()
    groups: tuple[AlignedGroup, ...] = ()
    float_nodes: tuple[FloatNode, ...] = ()

    def by_name(self) -> dict[str, TensorPlan]:
        """Return the tensors by their names."""
        return {tensor.name: tensor for tensor in self.tensors}

    def activations(self) -> tuple[TensorPlan, ...]:
        """Return the computed tensors, in graph order."""
        return tuple(t for t in self.tensors if t.role == "activation")

    def weights(self) -> tuple[TensorPlan, ...]:
        """Return the constants, in graph order."""
        return tuple(t for t in self.tensors if t.role == "weight")

    def observed(self) -> tuple[str, ...]:
        """Return the names of the tensors whose statistics are needed."""
        return tuple(dict.fromkeys(t.observe for t in self.activations() if t.is_calibrated))

    def integers(self) -> Plan:
        """Return the plan of the integer tensors alone."""
        tensors = tuple(t for t in self.tensors if t.spec.is_integer)
        names = {t.name for t in tensors}
        groups = tuple(
            msgspec.structs.replace(
                group,
                inputs=tuple(n for n in group.inputs if n in names),
                outputs=tuple(n for n in group.outputs if n in names),
            )
            for group in self.groups
        )
        return msgspec.structs.replace(
            self, tensors=tensors, groups=tuple(g for g in groups if g.inputs and g.outputs)
        )


def save_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan as JSON that people can edit."""
    text = msgspec.json.format(msgspec.json.encode(plan), indent=2)
    pathlib.Path(path).write_bytes(text + b"\n")


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan back; what does not fit the format is named."""
    try:
        plan = decode_json(pathlib.Path(path).read_bytes(), Plan)
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise PlanError(f"plan {path}: {error}; `lowbit plan --output` writes one") from error
    except msgspec.DecodeError as error:
        raise PlanError(f"plan {path} is not JSON: {error}") from error
    if plan.version != VERSION:
        raise PlanError(f"plan {path} is of version {plan.version}; this lowbit reads {VERSION}")
    return plan


def check_fit(plan: Plan, model: ir.Model) -> None:
    """Raise if the plan names what the model does not have, or contradicts itself."""
    values = ir.convenience.create_value_mapping(model.graph)
    planned = plan.by_name()
    nodes = {node.name for node in model.graph}
    if not plan.tensors:
        raise PlanError(why_nothing(model, (row.why for row in plan.float_nodes)))
    if len(planned) != len(plan.tensors):
        raise PlanError("the plan lists a tensor twice")
    for tensor in plan.tensors:
        if tensor.name not in values:
            raise PlanError(
                f"the plan lists tensor {tensor.name!r}, which the model does not have"
                f"{did_you_mean(tensor.name, values)}"
            )
        if tensor.role == "weight" and tensor.name not in model.graph.initializers:
            raise PlanError(f"the plan lists {tensor.name!r} as a weight, but it is computed")
        for name in tensor.consumers or ():
            if name not in nodes:
                raise PlanError(
                    f"the plan lists node {name!r} as a consumer of {tensor.name!r}, but the model "
                    f"has no such node{did_you_mean(name, [n for n in nodes if n])}"
                )
        _check_axis(tensor, values[tensor.name])
        leader = planned.get(tensor.leader)
        if leader is None or leader.leader != leader.name or leader.role != tensor.role:
            raise PlanError(
                f"tensor {tensor.name!r} uses the parameters of {tensor.leader!r}, "
                "which has none of its own in this plan"
            )
        if leader.spec.format_name != tensor.spec.format_name:
            raise PlanError(
                f"tensor {tensor.name!r} is {tensor.spec.format_name} but uses the parameters "
                f"of {leader.name!r}, which is {leader.spec.format_name}"
            )
    _check_biases(plan, model)


def _check_axis(tensor: TensorPlan, value: ir.Value) -> None:
    rank = None if value.shape is None else len(value.shape)
    if tensor.axis is not None and rank is not None and not -rank <= tensor.axis < rank:
        raise PlanError(
            f"tensor {tensor.name!r} has its channels along axis {tensor.axis} in this plan, but it "
            f"has {rank} axes"
        )


def _check_biases(plan: Plan, model: ir.Model) -> None:
    planned = plan.by_name()
    nodes = {node.name: node for node in model.graph}
    for row in plan.biases:
        if row.node not in nodes:
            raise PlanError(
                f"the plan has a bias for node {row.node!r}, which the model does not have"
                f"{did_you_mean(row.node, [n for n in nodes if n])}"
            )
        _check_facts(row, nodes[row.node], model)
        if not row.spec.is_accumulator:
            continue
        for name in (row.input, row.weight):
            if name not in planned:
                raise PlanError(
                    f"the bias of {row.node!r} is scaled by {name!r}, which is not in the plan; "
                    "remove the bias's row too, or put the tensor back"
                )


def _check_facts(row: BiasPlan, node: ir.Node, model: ir.Model) -> None:
    """Raise where a row says of its node what is not so: that is nothing to decide."""
    inputs = ["" if value is None else str(value.name) for value in node.inputs]
    operator = linear_operator(node)
    facts = {
        "input": inputs[0],
        "weight": row.weight if row.weight in inputs else inputs[0],
        "tensor": inputs[row.index] if 0 <= row.index < len(inputs) else "",
        "factor": 1.0 if operator is None else operator.bias_factor(node),
        "repeats": 1 if operator is None else operator.bias_repeats(node),
        "channel_axis": 1 if operator is None else operator.output_axis,
    }
    for field, fact in facts.items():
        if getattr(row, field) != fact:
            raise PlanError(
                f"the bias of {row.node!r} has {field} {getattr(row, field)!r} in this plan, but the "
                f"node has {fact!r}"
            )
    if row.tensor not in model.graph.initializers:
        raise PlanError(f"the plan lists {row.tensor!r} as a bias, but it is computed")
