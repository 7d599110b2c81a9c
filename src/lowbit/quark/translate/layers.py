"""Exceptions by layer: Quark's newer API gives other specs to named nodes or operator types."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import msgspec
import onnx_ir as ir

from lowbit.config.specs import BiasSpec, IntegerSpec, ProductBias, Rule, Spec, TensorOverride
from lowbit.quark.onnx.quantization.config.spec import QLayerConfig, QTensorConfig
from lowbit.quark.translate.selection import Nodes, exactly, inputs_of, outputs_of
from lowbit.quark.translate.specs import layer_spec


@dataclasses.dataclass(frozen=True, slots=True)
class LayerException:
    """What holds for some nodes, by name or by operator type; ``None``: they stay in float."""

    layer: QLayerConfig | None
    names: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Exceptions:
    """Rules for weights and biases by node, overrides for activations by tensor."""

    rules: tuple[Rule, ...] = ()
    tensors: tuple[TensorOverride, ...] = ()


def find_exceptions(
    given: Iterable[LayerException], nodes: Nodes, activation: Spec, weight: Spec
) -> Exceptions:
    """Return what the exceptions mean for the nodes of a model."""
    rules: list[Rule] = []
    tensors: dict[str, TensorOverride] = {}
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
    return Exceptions(tuple(rules), tuple(tensors.values()))


def layer_bias(weight: Spec, asked: QTensorConfig) -> BiasSpec:
    """Return the spec of a bias: in its accumulator's scale, or its own."""
    if asked.data_type.__name__ in ("Int32", "UInt32"):
        return ProductBias(repair=False, truncate_realigned=True)
    bias = layer_spec(weight, asked)
    if isinstance(bias, IntegerSpec):
        return msgspec.structs.replace(bias, per_channel=False, group=None)
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
