"""Write plan, parameters and stored values into the graph; emission decides nothing.

One row for each kind of spec says what writes it. A graph output keeps its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import onnx_ir as ir

from lowbit.config.specs import BfpSpec, DynamicSpec, FloatSpec, IntegerSpec, MxSpec
from lowbit.emit.blocks import BlockNodes
from lowbit.emit.dynamic import DynamicNodes
from lowbit.emit.emission import Emission, EmitOptions, Emitted, EmittedTensor
from lowbit.emit.floats import FloatNodes
from lowbit.emit.integers import IntegerNodes
from lowbit.graph.editing import REQUANTIZED, drop_unused
from lowbit.graph.memory import garbage_collection_paused
from lowbit.planning.plan import Plan, TensorPlan
from lowbit.scales.parameters import Params
from lowbit.scales.stored import Stored, Weights


class Nodes(Protocol):
    """Writes the tensors of one kind of spec."""

    def activation(self, tensor: TensorPlan) -> EmittedTensor:
        """Make all consumers of an activation read it through the format."""

    def weight(self, tensor: TensorPlan, make: Callable[[], Stored]) -> EmittedTensor:
        """Make all consumers of a constant read it through the format."""


NODES: Mapping[type[Any], Callable[[Emission], Nodes]] = MappingProxyType(
    {
        IntegerSpec: IntegerNodes,
        DynamicSpec: DynamicNodes,
        FloatSpec: FloatNodes,
        BfpSpec: BlockNodes,
        MxSpec: BlockNodes,
    }
)


@garbage_collection_paused()
def emit(
    model: ir.Model,
    plan: Plan,
    params: Params,
    weights: Weights,
    options: EmitOptions = EmitOptions(),  # noqa: B008
) -> Emitted:
    """Return a copy of ``model`` in which every planned tensor is quantized and dequantized."""
    emission = Emission.of(model.clone(), plan, params, options)
    nodes = {kind: make(emission) for kind, make in NODES.items()}
    tensors = {t.name: nodes[type(t.spec)].activation(t) for t in plan.activations()}
    integers = IntegerNodes(emission)
    biases = {
        row.node: integers.bias(row, params.biases[row.node], weights.biases[row.node])
        for row in plan.biases
    }
    for tensor in plan.weights():
        make = weights.tensors[tensor.name]
        tensors[tensor.name] = nodes[type(tensor.spec)].weight(tensor, make)
    emission.editor.join_names(REQUANTIZED)
    if emission.dynamic:
        # Where all consumers of an activation are products of integers, none reads it dequantized.
        drop_unused(emission.editor.graph)
    return Emitted(emission.editor.finish(), tensors, biases)
