"""Quark's types, attributes and calibration methods as the specs of lowbit's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from onnxruntime.quantization.calibrate import CalibrationMethod

from lowbit.config.methods import Distribution, Method, MinMax, MinMse, NonOverflow
from lowbit.config.specs import BfpSpec, FloatSpec, IntegerSpec, MxSpec, Spec
from lowbit.errors import ConfigError
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.ops.block_attributes import BfpAttributes, BlockAttributes, MxAttributes
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.extension import (
    QuarkEntropy,
    QuarkInt16Scale,
    QuarkLayerwisePercentile,
    QuarkMinMse,
    QuarkPercentile,
)
from lowbit.quark.onnx.quantization.config.config import QuantizationConfig
from lowbit.quark.onnx.quantization.config.custom_config import (
    block_attributes,
)
from lowbit.quark.onnx.quantization.config.spec import QTensorConfig, QuantGranularity
from lowbit.quark.onnx.quantization.quant_utils import (
    AnyQuantFormat,
    AnyQuantType,
    ExtendedCalibrationMethod,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    VitisQuantFormat,
)
from lowbit.quark.translate.options import ExtraOptions, given_or

_INTEGERS: Mapping[str, IntegerFormat] = MappingProxyType(
    {f"Q{'Int' if kind.signed else 'UInt'}{kind.bits}": kind for kind in IntegerFormat}
)
"""By the name of the member, which is the same in onnxruntime's and in both of Quark's types."""


def integer_format(kind: AnyQuantType) -> IntegerFormat:
    """Return the integer format of a quantized type."""
    name = getattr(kind, "name", str(kind))
    if name not in _INTEGERS:
        raise NotSupportedError(
            f"tensors of type {name} are not supported; integers of 4, 8, 16 and 32 bits, 16-bit "
            "floats, FLOAT8E4M3FN and block formats are"
        )
    return _INTEGERS[name]


def fixed_neuron(layout: AnyQuantFormat, kind: AnyQuantType) -> AnyQuantType:
    """Return the type that a format of the older names brings with it, or the one given."""
    if layout is VitisQuantFormat.BFPFixNeuron:
        return ExtendedQuantType.QBFP
    if layout is VitisQuantFormat.MXFixNeuron:
        return ExtendedQuantType.QMX
    return kind


def is_power_of_two(method: Any, options: ExtraOptions) -> bool:
    """Whether a calibration method asks for power-of-two scales."""
    return isinstance(method, PowerOfTwoMethod) and options.UsePowerOf2Scale is not False


def activation_method(method: Any, options: ExtraOptions) -> Method:
    """Return how Quark finds a range under this name, with the options it reads."""
    if method is CalibrationMethod.MinMax:
        return _minmax(options)
    if method is CalibrationMethod.Percentile:
        return QuarkPercentile(
            percentile=given_or(options.Percentile, 99.999),
            bins=given_or(options.NumBins, 2048),
            symmetric_range=given_or(options.CalibTensorRangeSymmetric, True),
        )
    if method is CalibrationMethod.Entropy:
        return QuarkEntropy(
            bins=given_or(options.NumBins, 128),
            levels=given_or(options.NumQuantizedBins, 128),
        )
    if method is CalibrationMethod.Distribution:
        return Distribution()
    if isinstance(method, PowerOfTwoMethod):
        return _power_of_two(method, options)
    if method is LayerWiseMethod.LayerWisePercentile:
        return QuarkLayerwisePercentile(
            candidates=tuple(options.PercentileCandidates or (99.99, 99.999, 99.99999)),
            metric=options.LWPMetric or "mae",
            bins=options.NumBins or 2048,
        )
    if isinstance(method, Int16Method):
        return MinMax()
    raise QuarkConfigError(f"calibrate_method is {method!r}; expected one of Quark's methods")


def weight_method(method: Any, options: ExtraOptions) -> Method:
    """Return how the range of a weight is found, given the method of activations."""
    if isinstance(method, PowerOfTwoMethod):
        return activation_method(method, options)
    chosen = options.WeightCalibrateMethod
    if chosen is None or chosen is CalibrationMethod.MinMax:
        return MinMax()
    if chosen is ExtendedCalibrationMethod.MinMSE:
        return MinMse()
    raise QuarkConfigError(
        f"WeightCalibrateMethod is {chosen!r}; expected CalibrationMethod.MinMax or "
        "ExtendedCalibrationMethod.MinMSE"
    )


def _power_of_two(method: PowerOfTwoMethod, options: ExtraOptions) -> Method:
    if options.UsePowerOf2Scale is False:
        return MinMse() if method is PowerOfTwoMethod.MinMSE else MinMax()
    if method is PowerOfTwoMethod.NonOverflow:
        return NonOverflow(nearest=True)
    # Quark keeps raw data for 0 bins; a histogram serves as well.
    return QuarkMinMse(bins=options.NumBins or 2048)


def _minmax(options: ExtraOptions) -> Method:
    if options.CalibTensorRangeSymmetric and not options.ActivationSymmetric:
        raise NotSupportedError(
            "CalibTensorRangeSymmetric with MinMax is not supported: set ActivationSymmetric, "
            "which makes the larger side hold for both"
        )
    if options.CalibMovingAverage:
        # Quark collects all samples at once, and takes the mean of what it collects at once.
        return MinMax(moving_average="mean")
    return MinMax()


_FLOATS = {
    "QFloat16": FloatFormat.FLOAT16,
    "QBFloat16": FloatFormat.BFLOAT16,
    "QFLOAT8E4M3FN": FloatFormat.FLOAT8E4M3FN,
}
_BLOCKS = ("QBFP", "QMX")


def is_float(kind: AnyQuantType) -> bool:
    """Whether a type is a float of 16 or 8 bits."""
    return kind.name in _FLOATS


def is_block(kind: AnyQuantType) -> bool:
    """Whether a type is a block format."""
    return kind.name in _BLOCKS


def float_spec(kind: AnyQuantType, method: Method, *, scaled: bool) -> FloatSpec:
    """Return the spec of a small float; ``method`` finds the scale if there is one, as 8 bits always have."""
    # bfloat16 reaches as far as float32 does; float16 does not. QuantizeLinear saturates by itself.
    saturate = kind.name == "QFloat16"
    scaled = scaled or _FLOATS[kind.name].bits == 8
    if not scaled:
        return FloatSpec(format=_FLOATS[kind.name], saturate=saturate)
    if not isinstance(method, (MinMax, QuarkPercentile)):
        raise QuarkConfigError(
            f"scaled {kind.name[1:]} is calibrated by MinMax or Percentile, "
            f"not by {type(method).__name__}"
        )
    return FloatSpec(format=_FLOATS[kind.name], scaled=True, saturate=saturate, method=method)


def block_spec(
    kind: AnyQuantType, bfp: Mapping[str, Any] | None, mx: Mapping[str, Any] | None
) -> BfpSpec | MxSpec:
    """Return the spec of a block format, with the attributes given for it."""
    name, asked = ("BFPAttributes", bfp) if kind.name == "QBFP" else ("MXAttributes", mx)
    given = _read(name, asked, BfpAttributes if kind.name == "QBFP" else MxAttributes)
    _usual_axis(given.axis)
    try:
        return given.spec()
    except ConfigError as error:
        raise NotSupportedError(f"{name}: {error}") from error


def _usual_axis(axis: int) -> None:
    if axis != 1:
        raise NotSupportedError(
            f"blocks along axis {axis} are not supported: they lie along channels, or along what "
            "a product sums up"
        )


def _read(
    name: str, given: Mapping[str, Any] | None, kind: type[BlockAttributes]
) -> BlockAttributes:
    try:
        return msgspec.convert(dict(given or {}), kind)
    except msgspec.ValidationError as error:
        raise QuarkConfigError(f"{name}: {error}") from error


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
        spec, per_channel=config.per_channel, group_size=group, reduce_range=config.reduce_range
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
            group_size=group,
        )
    return msgspec.structs.replace(
        start,
        format=integer_format(kind),
        symmetric=asked.symmetric,
        per_channel=start.per_channel or per_channel,
        group_size=group or start.group_size,
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
    if options.Int16Scale or isinstance(config.calibrate_method, Int16Method):
        method = _int16_scale(method, config, options)
    return IntegerSpec(
        format=integer_format(kind),
        symmetric=symmetric,
        power_of_two=is_power_of_two(config.calibrate_method, options),
        method=method,
    )


def _int16_scale(method: Method, config: QuantizationConfig, options: ExtraOptions) -> Method:
    if config.enable_npu_cnn or is_power_of_two(config.calibrate_method, options):
        raise QuarkConfigError(
            "Int16Scale is for float scales, and these are powers of two: switch enable_npu_cnn "
            "off and take a method of CalibrationMethod"
        )
    return QuarkInt16Scale(method=method)
