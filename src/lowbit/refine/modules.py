"""The layers whose weights can be refined, in the order of the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from lowbit.config.specs import IntegerSpec, Spec
from lowbit.graph.editing import constant
from lowbit.graph.naming import tensor_name
from lowbit.graph.session import Array
from lowbit.numerics.affine import QParams, dequantize
from lowbit.numerics.formats import FloatArray
from lowbit.ops.activations import NONE, Activation, activation_of
from lowbit.ops.linear import Layer, layer_of
from lowbit.planning.plan import BiasPlan, Plan
from lowbit.refine.tune import Quantizer
from lowbit.scales.bias import bias_integers
from lowbit.scales.floats import round_as
from lowbit.scales.parameters import Params, bias_values, constant_values
from lowbit.scales.solve import settle_biases
from lowbit.scales.stored import Weights
from lowbit.targets.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Draft:
    """A model as quantized so far, and all it was made from.

    ``floats`` computes the float reference under the same names; ``quantized`` is ``adapted``
    emitted with ``weights``.
    """

    floats: ir.Model
    adapted: ir.Model
    quantized: ir.Model
    plan: Plan
    params: Params
    weights: Weights
    target: Target


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """A value of the quantized model that a module reads: integers with their scale, or floats."""

    name: str
    scale: FloatArray | None = None
    zero_point: NDArray[np.integer] | None = None

    def floats(self, array: Array) -> FloatArray:
        """Return what the array stands for."""
        if self.scale is None or self.zero_point is None:
            return np.asarray(array, np.float32)
        # Of 8 or 16 bits, so the difference is exact.
        return (array.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """One layer: where it reads, what it is compared with, and how its weights are stored.

    ``weight_value`` and ``bias_value`` are the float values that the quantized model's node reads.
    ``fixed_bias`` is a bias that is not stored with the accumulator's scale, and stays as it is.
    ``activation`` is what follows with no rounding before it, ``quantizer`` the rounding after.
    """

    node: str
    op_type: str
    layer: Layer
    source: Source
    output: str
    weight: str
    spec: Spec
    params: QParams | None
    weight_value: str
    bias_value: str | None
    bias: BiasPlan | None
    activation: Activation = NONE
    quantizer: Quantizer | None = None
    axis: int | None = None
    scale: float = 1.0
    fixed_bias: FloatArray | None = None

    @property
    def grid(self) -> QParams:
        """The parameters of the stored integers."""
        if self.params is None:
            raise TypeError(f"the weights of {self.node} are no integers")
        return self.params

    def values(self, stored: Array) -> FloatArray:
        """Return what the layer computes with, given what is stored of its weights."""
        if self.params is None:
            return round_as(stored, self.spec, self.axis, self.scale)
        return dequantize(stored, self.params)

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest stored integer."""
        spec = self.spec
        if not isinstance(spec, IntegerSpec):
            raise TypeError(f"the weights of {self.node} are no integers")
        return spec.format.limits(symmetric=spec.symmetric, reduce_range=spec.reduce_range)


def find_modules(
    draft: Draft, ops: Collection[str], *, integers: bool = True
) -> tuple[list[Module], list[tuple[str, str]]]:
    """Return the modules, and the names of layers that are left alone with the reason.

    ``integers``: only those whose weights are stored as integers.
    """
    planned = {t.name: t for t in draft.plan.weights()}
    biases = {row.node: row for row in draft.plan.biases}
    nodes = {node.name: node for node in draft.quantized.graph}
    known = ir.convenience.create_value_mapping(draft.floats.graph, include_subgraphs=False)
    modules, skipped = [], []
    for node in draft.adapted.graph:
        if node.op_type not in ops or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        weight = node.inputs[1]
        row = planned.get(str(weight.name))
        if row is None or node.name is None:
            continue
        if integers and not isinstance(row.spec, IntegerSpec):
            continue
        layer = layer_of(node)
        if isinstance(layer, str):
            skipped.append((node.name, layer))
            continue
        if len(weight.uses()) > 1:
            skipped.append((node.name, "its weight is shared with another layer"))
            continue
        output = tensor_name(node.outputs[0])
        if output not in known:
            skipped.append((node.name, "the float model does not compute its output"))
            continue
        twin = nodes[node.name]
        modules.append(
            Module(
                node=node.name,
                op_type=node.op_type,
                layer=layer,
                source=_source(twin.inputs[0]),
                output=output,
                weight=row.name,
                spec=row.spec,
                params=draft.params.tensors.get(row.name),
                weight_value=_name(twin.inputs[1]),
                bias_value=_name(twin.inputs[2]) if node.name in biases else None,
                bias=biases.get(node.name),
                fixed_bias=None if node.name in biases else _fixed_bias(node, layer),
                axis=row.axis,
                scale=draft.params.scales.get(row.name, 1.0),
                **_behind(draft, node),
            )
        )
    return modules, skipped


def _fixed_bias(node: ir.Node, layer: Layer) -> FloatArray | None:
    """Return the constant bias of a node, one number for each of its outputs."""
    data = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if data is None or data.size != layer.groups * layer.outputs:
        return None
    beta = node.attributes.get_float("beta", 1.0) if node.op_type == "Gemm" else 1.0
    return np.asarray(data, np.float32).reshape(-1) * np.float32(beta)


def _behind(draft: Draft, node: ir.Node) -> dict[str, Any]:
    """Return the activation behind a layer and the quantizer behind that, if there are any."""
    planned = {t.name: t for t in draft.plan.activations()}
    value, activation = node.outputs[0], NONE
    uses = tuple(value.uses())
    if value.name not in planned and len(uses) == 1 and not value.is_graph_output():
        last = node.op_type in {"Gemm", "MatMul", "LayerNormalization"}
        found = activation_of(uses[0].node, last_axis=last)
        if found is not None:
            value, activation = uses[0].node.outputs[0], found
    row = planned.get(str(value.name))
    if row is None or not isinstance(row.spec, IntegerSpec):
        return {"activation": activation}
    params = draft.params.tensors[row.name]
    zero = float(params.zero_point)
    quantizer = Quantizer(float(params.scale), params.format.low - zero, params.format.high - zero)
    return {"activation": activation, "quantizer": quantizer}


def _name(value: ir.Value | None) -> str:
    if value is None:
        raise ValueError("a planned constant is not read")
    return tensor_name(value)


def _source(value: ir.Value | None) -> Source:
    """Look behind a DequantizeLinear, so that integers are kept rather than floats."""
    if value is None:
        raise ValueError("a layer without an input")
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.inputs[0] is None:
        return Source(tensor_name(value))
    scale = constant(node.inputs[1])
    zero_point = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if scale is None or scale.size != 1:
        return Source(tensor_name(value))
    zero = np.zeros((), np.int32) if zero_point is None else zero_point
    return Source(tensor_name(node.inputs[0]), scale.reshape(()), zero.reshape(()))


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What refinement made of a module: what is stored, and a float bias where it has one.

    ``codes`` are integers, or floats where the format is one of floats or blocks.

    ``before`` and ``after`` are the errors on held-out samples; unless ``kept``, the draft's own
    integers and bias are the result.
    """

    node: str
    codes: Array
    bias: FloatArray | None
    before: float
    after: float
    kept: bool


def stored_in(draft: Draft, module: Module) -> Array:
    """Return what the draft stores of a module's weights."""
    weights = draft.weights
    return (
        weights.floats[module.weight]()
        if module.params is None
        else weights.tensors[module.weight]()
    )


def drafted(draft: Draft, module: Module, outcome: Outcome) -> Outcome:
    """Return what a module is in the draft, as an outcome that was not kept."""
    return Outcome(
        module.node,
        stored_in(draft, module),
        float_bias(draft, module),
        outcome.before,
        outcome.before,
        kept=False,
    )


def settled_bias(draft: Draft, module: Module, bias: FloatArray) -> FloatArray:
    """Return what a float bias becomes in the quantized model."""
    row = module.bias
    if row is None:
        raise ValueError(f"{module.node} has no bias")
    only = msgspec.structs.replace(draft.plan, biases=(row,))
    params = settle_biases(draft.adapted, only, draft.params, draft.target, {row.node: bias})
    found = params.biases[row.node]
    return dequantize(bias_integers(bias, row, found, params.biases_before.get(row.node)), found)


def float_weights(draft: Draft, module: Module) -> FloatArray:
    """Return a module's weights before rounding."""
    return constant_values(draft.adapted, module.weight)


def float_bias(draft: Draft, module: Module) -> FloatArray | None:
    """Return a module's float bias as the draft has it, corrected or not."""
    if module.bias is None:
        return None
    known: Mapping[str, FloatArray] = draft.params.bias_values
    bias = known.get(module.node, bias_values(draft.adapted, module.bias))
    # A bias that is not one number a channel is left as it is.
    return bias if bias.size == module.layer.groups * module.layer.outputs else None
