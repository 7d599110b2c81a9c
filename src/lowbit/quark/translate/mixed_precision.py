"""Automatic mixed precision: Quark's dictionary of parameters as a value of lowbit's.

In addition to the names of 0.13 it takes those of earlier versions, which AMD's examples still use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx_ir as ir

from lowbit.api.quantize import planned_state
from lowbit.config.config import QuantConfig
from lowbit.config.mixed_precision import LayerOption, MixedPrecision, Subgraph
from lowbit.config.specs import BiasSpec, IntegerSpec, Spec
from lowbit.errors import ConfigError
from lowbit.graph.naming import names_of
from lowbit.numerics.metrics import Metric, Outputs
from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.algorithm import LAYER_TYPES
from lowbit.quark.onnx.quantization.config.spec import QLayerConfig, QTensorConfig
from lowbit.quark.onnx.quantization.quant_utils import ExtendedQuantType
from lowbit.quark.translate.options import ExtraOptions, read_struct
from lowbit.quark.translate.selection import Exceptions, layer_bias
from lowbit.quark.translate.specs import layer_spec, typed_spec
from lowbit.search.boundaries import find_boundaries
from lowbit.targets.target import Target


class AutoMix(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="pascal"
):
    """The keys of the AutoMixprecision dictionary, with their defaults."""

    target_layer_config: Any = None
    target_op_type: Sequence[str] = LAYER_TYPES
    subgraph_json: Any = None
    include_layers: list[str] | None = None
    exclude_layers: list[str] | None = None
    data_size: int = 1000
    metric_output_index: int = 0
    metric_distance_fn: Any = None
    metric_evaluate_fn: Any = None
    metric_default: Literal["l2", "kl", "cosine", "sqnr", "psnr"] = "l2"
    metric_threshold: float | None = 0.0
    metric_optimize_object: Literal["speed", "quality"] = "speed"
    sensitivity_cache_file: Any = None
    worker_num: int = 1
    dual_quant_nodes: bool = False
    no_input_qdq_shared: bool = msgspec.field(default=False, name="NoInputQDQShared")
    shared_param_mode: Literal["propagate", "unshare"] = "propagate"
    # Of earlier versions.
    target_quant_type: Any = None
    act_target_quant_type: Any = None
    weight_target_quant_type: Any = None
    bias_target_quant_type: Any = None
    target_tensors: list[str] | None = None
    output_index: int | None = None
    l2_target: float | None = msgspec.field(default=None, name="L2Target")
    top1_acc_target: float | None = None
    evaluate_function: Any = None
    num_target: int = 0
    target_indices: list[int] | None = None
    exclude_indices: list[int] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Precision:
    """The specs of all layers, and whether the options or a layer's spec decide symmetry."""

    activation: Spec
    weight: Spec
    options: ExtraOptions

    def inputs(self, asked: QTensorConfig | None) -> Spec | None:
        """Return an activation's spec in the asked format."""
        if asked is None:
            return None
        return _symmetric(layer_spec(self.activation, asked), said=self.options.ActivationSymmetric)

    def weights(self, asked: QTensorConfig | None) -> Spec | None:
        """Return a weight's spec in the asked format."""
        if asked is None:
            return None
        return _symmetric(layer_spec(self.weight, asked), said=self.options.WeightSymmetric)

    def bias(self, asked: QTensorConfig | None) -> BiasSpec | None:
        """Return a bias's spec in the asked format; none if biases stay in float."""
        if asked is None or self.options.QuantizeBias is False:
            return None
        return layer_bias(self.weight, asked)


def read_mixed_precision(
    given: Mapping[str, Any], precision: Precision, *, lenient: bool
) -> tuple[MixedPrecision, Metric | None]:
    """Return what the dictionary means, and the user's own distance if there is one."""
    asked = read_struct("AutoMixprecision", given, AutoMix, lenient=lenient)
    threshold = asked.metric_threshold
    if asked.l2_target is not None:
        threshold = asked.l2_target
    if asked.top1_acc_target is not None:
        if asked.evaluate_function is None:
            raise QuarkConfigError("AutoMixprecision: Top1AccTarget needs an EvaluateFunction")
        threshold = asked.top1_acc_target
    try:
        mixed = MixedPrecision(
            options=_options(asked, precision),
            op_types=tuple(asked.target_op_type),
            include=(*(asked.include_layers or ()), *(asked.target_tensors or ())),
            exclude=tuple(asked.exclude_layers or ()),
            subgraphs=_subgraphs(asked.subgraph_json),
            metric=asked.metric_default,
            threshold=threshold,
            objective=asked.metric_optimize_object,
            output=max(asked.output_index or asked.metric_output_index, 0),
            data_size=asked.data_size if asked.data_size > 0 else None,
            most=asked.num_target or None,
            ranks=tuple(asked.target_indices or ()),
            not_ranks=tuple(asked.exclude_indices or ()),
            unshared_inputs=asked.no_input_qdq_shared,
            sharing=asked.shared_param_mode,
            requantize=asked.dual_quant_nodes,
            cache=None
            if asked.sensitivity_cache_file is None
            else str(asked.sensitivity_cache_file),
            workers=max(asked.worker_num, 1),
        )
    except ConfigError as error:
        raise QuarkConfigError(f"AutoMixprecision: {error}") from error
    return mixed, _metric(asked)


def _options(asked: AutoMix, precision: Precision) -> tuple[LayerOption, ...]:
    target = asked.target_layer_config
    kinds = (asked.act_target_quant_type, asked.weight_target_quant_type, asked.target_quant_type)
    if target is None and any(kind is not None for kind in kinds):
        return (_typed(asked, precision),)
    if target is None:
        raise QuarkConfigError("AutoMixprecision needs a TargetLayerConfig")
    if isinstance(target, Mapping) and any(isinstance(key, str) for key in target):
        target = QLayerConfig.from_dict(target)
    if isinstance(target, QLayerConfig):
        return (_option(target, precision),)
    if isinstance(target, Mapping):
        return tuple(_option(layer, precision, names) for layer, names in target.items())
    layers = [QLayerConfig.from_dict(t) if isinstance(t, Mapping) else t for t in target]
    return tuple(_option(layer, precision) for layer in layers)


def _option(
    layer: QLayerConfig, precision: Precision, names: Sequence[str] | None = None
) -> LayerOption:
    outputs = layer.activation if layer.activation is not None else layer.output_tensors
    return LayerOption(
        inputs=precision.inputs(layer.inputs()),
        weight=precision.weights(layer.weight),
        bias=precision.bias(layer.bias),
        outputs=precision.inputs(outputs),
        layers=tuple(names or ()),
    )


def _typed(asked: AutoMix, precision: Precision) -> LayerOption:
    """Return what the types of earlier versions mean."""
    act = _kind(asked.act_target_quant_type or asked.target_quant_type)
    weight = _kind(asked.weight_target_quant_type or asked.target_quant_type)
    weights = None if weight is None else typed_spec(precision.weight, weight, precision.options)
    bias: Spec | None = None
    if asked.bias_target_quant_type is not None and precision.options.QuantizeBias is not False:
        bias = typed_spec(precision.weight, _kind(asked.bias_target_quant_type), precision.options)
    elif precision.options.Int32Bias is False:
        bias = weights
    if isinstance(bias, IntegerSpec):
        bias = msgspec.structs.replace(bias, per_channel=False, group_size=None)
    return LayerOption(
        inputs=None if act is None else typed_spec(precision.activation, act, precision.options),
        weight=weights,
        bias=bias,
    )


def _kind(asked: Any) -> Any:
    """Return a quantized type; the newer API's data types name one, earlier scripts its word."""
    if isinstance(asked, str):
        return ExtendedQuantType.from_string(asked)
    return getattr(asked, "map_onnx_format", asked)


def _symmetric(spec: Spec, *, said: bool | None) -> Spec:
    if said is None or not isinstance(spec, IntegerSpec):
        return spec
    return msgspec.structs.replace(spec, symmetric=said)


def _metric(asked: AutoMix) -> Metric | None:
    given = [
        f
        for f in (asked.metric_distance_fn, asked.metric_evaluate_fn, asked.evaluate_function)
        if f
    ]
    if len(given) > 1:
        raise QuarkConfigError("AutoMixprecision: give one function that measures, not several")
    for function in given:
        if not callable(function):
            raise QuarkConfigError(f"AutoMixprecision: {function!r} cannot be called")
    if asked.metric_distance_fn is not None:
        distance: Metric = asked.metric_distance_fn
        return distance
    if asked.metric_evaluate_fn is not None:
        return _loss(asked.metric_evaluate_fn, lambda outputs: outputs)
    if asked.evaluate_function is not None:
        return _loss(asked.evaluate_function, _one_array)
    return None


def _loss(evaluate: Callable[[Any], float], shaped: Callable[[Outputs], Any]) -> Metric:
    """Return by how much a figure that should be high is lower than the float model's."""
    return lambda want, got: float(evaluate(shaped(want)) - evaluate(shaped(got)))


def _one_array(outputs: Outputs) -> Any:
    return np.concatenate([sample[0] for sample in outputs])


class _Part(msgspec.Struct):
    name: str
    start_nodes: tuple[str, ...]
    end_nodes: tuple[str, ...]


class _Parts(msgspec.Struct):
    subgraphs: tuple[_Part, ...]
    num_subgraphs: int | None = None
    quantized: bool = False


def _subgraphs(path: Any) -> tuple[Subgraph, ...]:
    if path is None:
        return ()
    try:
        read = msgspec.json.decode(Path(path).read_bytes(), type=_Parts)
    except (OSError, msgspec.DecodeError) as error:
        raise QuarkConfigError(f"SubgraphJson {path}: {error}") from error
    if read.num_subgraphs not in (None, len(read.subgraphs)):
        raise QuarkConfigError(
            f"SubgraphJson {path}: num_subgraphs is {read.num_subgraphs}, but there are "
            f"{len(read.subgraphs)}"
        )
    if read.quantized:
        say("SubgraphJson: names are looked up in the float model, also with quantized=true")
    return tuple(
        Subgraph(name=part.name, start=part.start_nodes, end=part.end_nodes)
        for part in read.subgraphs
    )


def with_boundaries(
    config: QuantConfig, model: ir.Model, target: Target, exceptions: Exceptions
) -> QuantConfig:
    """Return the configuration with a requantization pair at each format boundary.

    What a layer with an exception consumes and produces is in its own format, all else in the common
    one: the exceptions no longer hold for whole tensors.
    """
    others = tuple(row for row in config.tensors if row not in exceptions.tensors)
    common = msgspec.structs.replace(
        config, tensors=others, equalization=None, smooth_quant=None, rotation=None
    )
    state = planned_state(model, config=common, target=target)
    graph = state.adapted.graph
    options = dict(exceptions.layers)
    changes = [
        (str(node.name), options[name])
        for node in graph
        for name in names_of(node)
        if name in options
    ]
    found = find_boundaries(graph, state.plan, changes)
    return msgspec.structs.replace(
        config, tensors=(*others, *found.tensors), requantize=found.requantize
    )
