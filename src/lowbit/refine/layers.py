"""The layers whose weights can be refined, in the order of the graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from lowbit.config.specs import Spec
from lowbit.graph.editing import REQUANTIZED, constant
from lowbit.graph.naming import operator_name, tensor_name
from lowbit.graph.session import Array
from lowbit.numerics.affine import QParams, dequantize
from lowbit.numerics.formats import FloatArray
from lowbit.ops.activations import NONE, Activation, activation_of
from lowbit.ops.curves import CURVES
from lowbit.ops.geometry import LinearLayer
from lowbit.ops.linear import LAYERS, LINEAR, has_constant_weight, layer_of
from lowbit.planning.plan import BiasPlan, TensorPlan
from lowbit.refine.gradient import Quantizer
from lowbit.scales.bias import bias_integers
from lowbit.scales.formats import rounded_values
from lowbit.scales.limited_nodes import find_limited
from lowbit.scales.parameters import bias_values, constant_values
from lowbit.scales.saturation import SummedPairs, pairs_of
from lowbit.scales.shift_limits import Limited
from lowbit.scales.solve import settle_bias
from lowbit.state import Quantized

_MUCH = 2.0
"""A range this many times as wide as a quantizer's is clipped on purpose."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerInput:
    """A value of the quantized model that a layer reads: integers with their parameters, or floats."""

    name: str
    params: QParams | None = None

    def floats(self, array: Array) -> FloatArray:
        """Return what the array stands for."""
        if self.params is None:
            return np.asarray(array, np.float32)
        # Of 8 or 16 bits, so the difference is exact.
        zero_point, scale = np.float32(self.params.zero_point), np.float32(self.params.scale)
        return (array.astype(np.float32) - zero_point) * scale


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RefinedLayer:
    """One layer: what it reads, what it is compared with, and how its weights are stored.

    Attributes:
        node: Its name; ``op_type``: its operator.
        geometry: How its weights and its input make its output.
        input: What it reads in the quantized model.
        output: The float output that it is to match, by name.
        weight: The plan's row of its weights.
        params: The parameters of its weights, if they are integers.
        weight_name: The float values of the weights that the quantized model's node reads.
        bias_name: Those of its bias, if it has one of its own parameters.
        bias: The plan's row of its bias.
        activation: What follows with no rounding before it; ``quantizer``: the rounding after that.
        scale: The scale of weights in 16-bit floats.
        clipped: Whether its input or its output has a range much narrower than what was seen: positions that
            are clipped have nothing to say then, and would outvote all others.
        relative: Whether each position counts relative to its own output: what is normalized next
            sees no more of a token that is a hundred times as large as others than of these.
        fixed_bias: A bias that is not stored as integers, and stays as it is.
        limited: What the datapath limits about it, if anything.
        pairs: Which of its weights meet in kernels that saturate.
        reads_other_curve: Whether a function on the way to it is another one on the device: a hard sigmoid.
    """

    node: str
    op_type: str
    geometry: LinearLayer
    input: LayerInput
    output: str
    weight: TensorPlan
    params: QParams | None
    weight_name: str
    bias_name: str | None
    bias: BiasPlan | None
    activation: Activation = NONE
    quantizer: Quantizer | None = None
    scale: float = 1.0
    clipped: bool = False
    relative: bool = False
    fixed_bias: FloatArray | None = None
    limited: Limited | None = None
    pairs: SummedPairs | None = None
    reads_other_curve: bool = False

    @property
    def spec(self) -> Spec:
        """The spec of its weights."""
        return self.weight.spec

    @property
    def weight_params(self) -> QParams:
        """The parameters of the stored integers."""
        if self.params is None:
            raise TypeError(f"the weights of {self.node} are no integers")
        return self.params

    def values(self, stored: Array) -> FloatArray:
        """Return what the layer computes with, given what is stored of its weights."""
        if self.params is None:
            return rounded_values(stored, self.spec, self.weight.axis, self.scale)
        return dequantize(stored, self.params)

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest stored integer."""
        return self.weight.integer.limits


@dataclasses.dataclass(frozen=True, slots=True)
class LayerResult:
    """The result of refining a layer: stored weights, and a float bias where it has one.

    ``stored`` are integers, or floats where the format is one of floats or blocks. ``before`` and
    ``after`` are the errors on held-out samples; unless ``kept``, what was stored before is the result.
    """

    node: str
    stored: Array
    bias: FloatArray | None
    before: float
    after: float
    kept: bool


def find_layers(
    state: Quantized, op_types: Collection[str], *, integers: bool = True
) -> tuple[list[RefinedLayer], list[tuple[str, str]]]:
    """Return the layers to refine, and the names of those that are skipped with the reason.

    ``op_types``: those refined; all linear layers if there are none. ``integers``: only layers
    whose weights are stored as integers.
    """
    rows = _Rows.of(state)
    floats = state.calibrated_model.graph
    known = ir.convenience.create_value_mapping(floats, include_subgraphs=False)
    layers, skipped = [], []
    for node in state.adapted.graph:
        if (
            operator_name(node) not in (op_types or LINEAR)
            or len(node.inputs) < 2
            or node.name is None
        ):
            continue
        value = node.inputs[1]
        row = rows.weights.get(str(value.name)) if value is not None else None
        if value is None or row is None or (integers and not row.spec.is_integer):
            continue
        geometry = layer_of(node)
        if isinstance(geometry, str):
            skipped.append((node.name, geometry))
        elif geometry.no_patches is not None:
            skipped.append((node.name, geometry.no_patches))
        elif len(value.uses()) > 1:
            skipped.append((node.name, "its weight is shared with another layer"))
        elif tensor_name(node.outputs[0]) not in known:
            skipped.append((node.name, "the float model does not compute its output"))
        else:
            layers.append(_refined_layer(state, rows, node, row, geometry))
    return layers, skipped


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """The plan's rows of a model's tensors by name, and of biases and limits by node."""

    tensors: Mapping[str, TensorPlan]
    activations: Mapping[str, TensorPlan]
    weights: Mapping[str, TensorPlan]
    biases: Mapping[str, BiasPlan]
    limited: Mapping[str, Limited]
    pairs: Mapping[str, SummedPairs]
    other_curves: frozenset[ir.Value]

    @classmethod
    def of(cls, state: Quantized) -> _Rows:
        plan, limits = state.plan, state.target.limits
        limited = [] if limits is None else find_limited(state.adapted, plan, limits)
        return cls(
            plan.by_name(),
            {tensor.name: tensor for tensor in plan.activations()},
            {tensor.name: tensor for tensor in plan.weights()},
            {row.node: row for row in plan.biases},
            {found.node: found for found in limited},
            pairs_of(state.adapted, plan),
            _other_curves(state),
        )


def _refined_layer(
    state: Quantized, rows: _Rows, node: ir.Node, row: TensorPlan, geometry: LinearLayer
) -> RefinedLayer:
    name = node.name or ""
    bias = rows.biases.get(name)
    activation, quantizer = _after(state, rows, node)
    return RefinedLayer(
        node=name,
        op_type=node.op_type,
        geometry=geometry,
        input=_layer_input(state, node.inputs[0]),
        output=tensor_name(node.outputs[0]),
        weight=row,
        params=state.params.tensors.get(row.name),
        weight_name=state.emitted.tensors[row.name].read,
        bias_name=state.emitted.biases[name].read if bias is not None else None,
        bias=bias,
        fixed_bias=None if bias is not None else _fixed_bias(node, geometry),
        scale=state.params.scales.get(row.name, 1.0),
        clipped=any(_is_clipped(state, rows, v) for v in (node.inputs[0], node.outputs[0])),
        relative=_is_own_input(rows, node.inputs[0]),
        activation=activation,
        quantizer=quantizer,
        limited=rows.limited.get(name),
        pairs=rows.pairs.get(row.name),
        reads_other_curve=node.inputs[0] in rows.other_curves,
    )


def _other_curves(state: Quantized) -> frozenset[ir.Value]:
    """Return the values that depend on a function that the device replaces, with no linear layer between.

    An average whose factor the device rounds is another number too, but attenuates nothing.
    """
    found: set[ir.Value] = set()
    for node in state.adapted.graph if state.float_names else ():
        if has_constant_weight(node):
            continue
        if operator_name(node) in CURVES or any(value in found for value in node.inputs):
            found.update(node.outputs)
    return frozenset(value for value in found if value.name in state.float_names)


def _layer_input(state: Quantized, value: ir.Value | None) -> LayerInput:
    """Return the quantized integers that a layer reads, rather than the floats, where there are any."""
    if value is None:
        raise ValueError("a layer without an input")
    name, producer = tensor_name(value), value.producer()
    emitted = state.emitted.tensors.get(name)
    if emitted is None and producer is not None and producer.meta.get(REQUANTIZED):
        # A second name that is not quantized after all: emission joined it with the first.
        return _layer_input(state, producer.inputs[0])
    if emitted is None:
        return LayerInput(name)
    params = state.params.tensors.get(name)
    if params is None or emitted.stored is None or params.scale.size != 1:
        return LayerInput(emitted.read)
    return LayerInput(emitted.stored, params)


def _is_own_input(rows: _Rows, value: ir.Value | None) -> bool:
    """Whether linear layers alone read a tensor quantized, as in the float parts of a graph."""
    row = None if value is None else rows.tensors.get(tensor_name(value))
    return row is not None and row.consumers is not None


def _fixed_bias(node: ir.Node, geometry: LinearLayer) -> FloatArray | None:
    """Return the constant bias of a node, one number for each of its outputs."""
    data = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if data is None or data.size != geometry.channels:
        return None
    factor = np.float32(LAYERS[operator_name(node)].bias_factor(node))
    return np.asarray(data, np.float32).reshape(-1) * factor


def _after(state: Quantized, rows: _Rows, node: ir.Node) -> tuple[Activation, Quantizer | None]:
    """Return the activation after a layer and the quantizer after that, if there are any."""
    planned = rows.activations
    value, activation = node.outputs[0], NONE
    uses = tuple(value.uses())
    if value.name not in planned and len(uses) == 1 and not value.is_graph_output():
        last = LAYERS[operator_name(node)].output_axis == -1
        found = activation_of(uses[0].node, last_axis=last)
        if found is not None:
            value, activation = uses[0].node.outputs[0], found
    row = planned.get(str(value.name))
    if row is None or not row.spec.is_integer:
        return activation, None
    params = state.params.tensors[row.name]
    zero = float(params.zero_point)
    low, high = params.format.low - zero, params.format.high - zero
    return activation, Quantizer(float(params.scale), low, high)


def _is_clipped(state: Quantized, rows: _Rows, value: ir.Value | None) -> bool:
    """Whether a quantizer's range is much narrower than what was seen of its tensor."""
    row = None if value is None else rows.activations.get(str(value.name))
    seen = None if row is None else state.stats.tensors.get(row.observe)
    params = None if row is None else state.params.tensors.get(row.name)
    if seen is None or params is None:
        return False
    zero, scale = float(params.zero_point), float(params.scale)
    low, high = (scale * (limit - zero) for limit in (params.format.low, params.format.high))
    return seen.high > _MUCH * high or seen.low < _MUCH * low


def unrefined(state: Quantized, layer: RefinedLayer, error: float) -> LayerResult:
    """Return what a layer was before, with its error, as a result that was not kept."""
    return LayerResult(
        layer.node,
        state.weights.tensors[layer.weight.name](),
        float_bias(state, layer),
        error,
        error,
        kept=False,
    )


def settled_bias(state: Quantized, layer: RefinedLayer, bias: FloatArray) -> FloatArray:
    """Return what a float bias becomes in the quantized model."""
    row = layer.bias
    if row is None:
        raise ValueError(f"{layer.node} has no bias")
    found, _ = settle_bias(row, bias, layer.limited, state.params, state.target)
    before = state.params.biases_before.get(row.node)
    return dequantize(bias_integers(bias, row, found, before), found)


def float_weights(state: Quantized, layer: RefinedLayer) -> FloatArray:
    """Return a layer's weights before rounding."""
    return constant_values(state.adapted, layer.weight.name)


def float_bias(state: Quantized, layer: RefinedLayer) -> FloatArray | None:
    """Return a layer's float bias as it stands, corrected or not."""
    if layer.bias is None:
        return None
    known: Mapping[str, FloatArray] = state.params.bias_values
    name = layer.node
    bias = known[name] if name in known else bias_values(state.adapted, layer.bias)
    # A bias that is not one number a channel is left as it is.
    return bias if bias.size == layer.geometry.channels else None


def replaced_constants(
    state: Quantized, layer: RefinedLayer, result: LayerResult
) -> dict[str, Array]:
    """Return the values that a refined layer's node reads from now on."""
    values: dict[str, Array] = {layer.weight_name: layer.values(result.stored)}
    if layer.bias_name is not None and result.bias is not None:
        values[layer.bias_name] = settled_bias(state, layer, result.bias)
    return values


class RefinedConstants(Mapping[str, Array]):
    """The values that the nodes of all refined layers read, made when they are asked for.

    As they are stored they take a quarter of the memory, and a step of the model reads few of them.
    """

    def __init__(self, state: Quantized) -> None:
        self._state = state
        self._results: dict[str, tuple[RefinedLayer, LayerResult]] = {}

    def add(self, layer: RefinedLayer, result: LayerResult) -> None:
        """Use the refined constants of a layer's node."""
        self._results[layer.weight_name] = layer, result
        if layer.bias_name is not None and result.bias is not None:
            self._results[layer.bias_name] = layer, result

    def __getitem__(self, name: str) -> Array:
        layer, result = self._results[name]
        if name == layer.weight_name:
            return layer.values(result.stored)
        if result.bias is None:
            raise KeyError(name)
        return settled_bias(self._state, layer, result.bias)

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __contains__(self, name: object) -> bool:
        return name in self._results
