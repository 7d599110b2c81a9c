"""From a quantized type of Quark's to the spec of a tensor."""

from __future__ import annotations

import msgspec

from lowbit.config.methods import Method, MinMax
from lowbit.config.specs import IntegerSpec, Spec
from lowbit.quark.onnx.quantization.config.legacy import QuantizationConfig
from lowbit.quark.onnx.quantization.config.spec import QTensorConfig, QuantGranularity
from lowbit.quark.onnx.quantization.quant_utils import AnyQuantType
from lowbit.quark.translate.blocks import block_spec, float_spec, is_block, is_float
from lowbit.quark.translate.options import ExtraOptions
from lowbit.quark.translate.types import (
    activation_method,
    block_attributes,
    fixed_neuron,
    integer_format,
    is_power_of_two,
    weight_method,
)

_GROUP = 128


def activation_spec(config: QuantizationConfig, options: ExtraOptions) -> Spec:
    """Return how activations are quantized."""
    kind = fixed_neuron(config.quant_format, config.activation_type)
    method = activation_method(config.calibrate_method, options)
    if is_float(kind):
        return float_spec(kind, method, scaled=bool(options.ActivationScaled))
    if is_block(kind):
        return block_spec(kind, options.BFPAttributes, options.MXAttributes)
    return _integers(kind, config, options, method, symmetric=bool(options.ActivationSymmetric))


def weight_spec(
    config: QuantizationConfig, options: ExtraOptions, group: int | None = None
) -> Spec:
    """Return how weights are quantized."""
    kind = fixed_neuron(config.quant_format, config.weight_type)
    method = weight_method(config.calibrate_method, options)
    if is_float(kind):
        return float_spec(kind, MinMax(), scaled=bool(options.WeightScaled))
    if is_block(kind):
        return block_spec(kind, options.BFPAttributes, options.MXAttributes)
    given = options.WeightSymmetric
    symmetric = integer_format(kind).signed if given is None else given
    spec = _integers(kind, config, options, method, symmetric=symmetric)
    return msgspec.structs.replace(
        spec, per_channel=config.per_channel, group=group, reduce_range=config.reduce_range
    )


def group_of(asked: QTensorConfig) -> int | None:
    """Return how many weights share a scale; Quark has a size only for its MatMulNBits."""
    return _GROUP if asked.quant_granularity is QuantGranularity.Group else None


def layer_spec(start: Spec, asked: QTensorConfig) -> Spec:
    """Return the spec a layer asks for; ranges are found as for all others."""
    kind = asked.data_type.map_onnx_format
    if is_float(kind):
        return float_spec(kind, MinMax(), scaled=False)
    if is_block(kind):
        attributes = block_attributes(asked.data_type)
        return block_spec(kind, attributes.get("BFPAttributes"), attributes.get("MXAttributes"))
    per_channel = asked.quant_granularity is QuantGranularity.Channel
    group = group_of(asked)
    if not isinstance(start, IntegerSpec):
        return IntegerSpec(
            format=integer_format(kind),
            symmetric=asked.symmetric,
            per_channel=per_channel,
            group=group,
        )
    return msgspec.structs.replace(
        start,
        format=integer_format(kind),
        symmetric=asked.symmetric,
        per_channel=start.per_channel or per_channel,
        group=group or start.group,
    )


def typed_spec(start: Spec, kind: AnyQuantType, options: ExtraOptions) -> Spec:
    """Return the spec of a bare type; all else is as in ``start``."""
    if is_float(kind):
        return float_spec(kind, MinMax(), scaled=False)
    if is_block(kind):
        return block_spec(kind, options.BFPAttributes, options.MXAttributes)
    if isinstance(start, IntegerSpec):
        return msgspec.structs.replace(start, format=integer_format(kind))
    return IntegerSpec(format=integer_format(kind))


def _integers(
    kind: AnyQuantType,
    config: QuantizationConfig,
    options: ExtraOptions,
    method: Method,
    *,
    symmetric: bool,
) -> IntegerSpec:
    return IntegerSpec(
        format=integer_format(kind),
        symmetric=symmetric,
        power_of_two=is_power_of_two(config.calibrate_method, options),
        method=method,
    )
