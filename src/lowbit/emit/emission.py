"""Shared by all emitters: options, the model being written, and the names of emitted tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from lowbit.config.config import Domain
from lowbit.emit.functions import Functions
from lowbit.graph.editing import GraphEditor
from lowbit.ops.traits import OPERATORS, Operators
from lowbit.planning.plan import Plan
from lowbit.scales.parameters import Params
from lowbit.targets.target import PackedOperator


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmitOptions:
    """How things are written that mean the same.

    Attributes:
        domain: Operator domain of the Q/DQ nodes of integers.
        casts: Whether 16-bit floats are pairs of Cast, instead of the operators AMD's tools know.
        half_weights: Whether constants in 16-bit floats are stored as such.
        packed: Operators of com.microsoft that read packed weights.
        operators: What is known of operators.
    """

    domain: Domain = "auto"
    casts: bool = False
    half_weights: bool = False
    packed: tuple[PackedOperator, ...] = ()
    operators: Operators = dataclasses.field(default_factory=lambda: OPERATORS)


@dataclasses.dataclass(frozen=True, slots=True)
class DynamicInput:
    """An activation, and what DynamicQuantizeLinear makes of it."""

    source: ir.Value
    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value


@dataclasses.dataclass(frozen=True, slots=True)
class Emission:
    """One model that is being written.

    ``dynamic`` are the inputs, by node, of products that may be computed in integers.
    """

    editor: GraphEditor
    functions: Functions
    params: Params
    options: EmitOptions
    planned: frozenset[str]
    dynamic: dict[str, DynamicInput] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model, plan: Plan, params: Params, options: EmitOptions) -> Emission:
        """Begin to write into a model, which is changed."""
        editor = GraphEditor(model)
        planned = frozenset(tensor.name for tensor in plan.activations())
        return cls(editor, Functions(editor), params, options, planned)


@dataclasses.dataclass(frozen=True, slots=True)
class EmittedTensor:
    """The names of a tensor in the quantized graph: as stored or quantized, and as it is read."""

    stored: str | None
    read: str


@dataclasses.dataclass(frozen=True, slots=True)
class Emitted:
    """A quantized model, and the names of its tensors by those of the plan; biases by node."""

    model: ir.Model
    tensors: Mapping[str, EmittedTensor]
    biases: Mapping[str, EmittedTensor]
