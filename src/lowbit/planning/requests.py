"""Collect, node after node, which tensors operators request quantized."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

import onnx_ir as ir

from lowbit.config.specs import Spec
from lowbit.graph.editing import REQUANTIZED
from lowbit.graph.naming import tensor_name
from lowbit.ops.linear import has_constant_weight
from lowbit.ops.traits import OpTraits
from lowbit.planning.blocks import FloatParts
from lowbit.planning.rules import Scheme

Role: TypeAlias = Literal["input", "output"]


@dataclasses.dataclass(slots=True)
class Request:
    """The request of the operators around one activation."""

    spec: Spec
    priority: int
    why: str
    consumers: tuple[str, ...] | None = None
    """The nodes that read it quantized; ``None``: all."""


@dataclasses.dataclass(slots=True)
class Placement:
    """The requests collected so far, in the order they were made."""

    activations: dict[str, Request] = dataclasses.field(default_factory=dict)
    weights: dict[str, Request] = dataclasses.field(default_factory=dict)
    channel_axis: dict[str, int] = dataclasses.field(default_factory=dict)
    active: dict[ir.Node, OpTraits] = dataclasses.field(default_factory=dict)
    float_why: dict[ir.Node, str] = dataclasses.field(default_factory=dict)
    caches: dict[str, str] = dataclasses.field(default_factory=dict)
    """Inputs that are caches, with the outputs they come from."""
    parts: FloatParts = dataclasses.field(default_factory=FloatParts)

    def request(self, value: ir.Value, scheme: Scheme, node: ir.Node, role: Role) -> None:
        """Ask for an activation to be quantized; a later rule overrides an earlier one."""
        spec, inside = scheme.activation, value in self.parts.tensors
        if spec is None or is_lone(value, spec) or value in self.parts.masks:
            return
        wanted = role == "input" if has_constant_weight(node) else scheme.priority > 0
        # A scale that is found at run time is asked for only where the target computes with it.
        if inside and not (wanted or spec.is_dynamic):
            return
        why = f"{role} of {node.op_type} {node.name}"
        if node.meta.get(REQUANTIZED):
            why = "output of the graph"
        # Where all else is in float, a layer quantizes for itself alone; so it does at run time.
        request = Request(
            spec, scheme.priority, why, (node.name or "",) if inside or spec.is_dynamic else None
        )
        known = self.activations.setdefault(tensor_name(value), request)
        if known.consumers is None or request.consumers is None:
            known.consumers = None
        else:
            known.consumers = tuple(dict.fromkeys((*known.consumers, *request.consumers)))
        if scheme.priority > known.priority:
            known.spec, known.priority, known.why = spec, scheme.priority, why


def is_lone(value: ir.Value, spec: Spec) -> bool:
    """Whether this is a single number, of which no block can be made."""
    return spec.is_block and value.shape is not None and value.shape.rank() == 0
