"""What operators request of the tensors around them, collected node after node."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from lowbit.config.specs import Spec
from lowbit.graph.naming import tensor_name
from lowbit.ops.traits import OpTraits
from lowbit.planning.rules import Scheme


@dataclasses.dataclass(slots=True)
class Request:
    """What the operators around one activation request for it."""

    spec: Spec
    priority: int
    why: str


@dataclasses.dataclass(slots=True)
class Placement:
    """The requests collected so far, in the order they were made.

    ``consumers``: the nodes that read an activation quantized, where not all do.
    """

    activations: dict[str, Request] = dataclasses.field(default_factory=dict)
    weights: dict[str, Request] = dataclasses.field(default_factory=dict)
    channel_axis: dict[str, int] = dataclasses.field(default_factory=dict)
    active: dict[ir.Node, OpTraits] = dataclasses.field(default_factory=dict)
    float_why: dict[ir.Node, str] = dataclasses.field(default_factory=dict)
    consumers: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def request(self, value: ir.Value, scheme: Scheme, why: str) -> None:
        """Ask for an activation to be quantized; a later rule overrides an earlier one."""
        name, spec = tensor_name(value), scheme.activation
        if spec is None or is_lone(value, spec):
            return
        known = self.activations.get(name)
        if known is None or scheme.priority > known.priority:
            self.activations[name] = Request(spec, scheme.priority, why)


def is_lone(value: ir.Value, spec: Spec) -> bool:
    """Whether this is a single number, of which no block can be made."""
    return spec.is_block and value.shape is not None and value.shape.rank() == 0
