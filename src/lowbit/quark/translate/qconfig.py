"""The newer configuration in terms of the older one, as Quark itself maps it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from onnxruntime.quantization.calibrate import CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantFormat

from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.algorithm import (
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    CLEConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from lowbit.quark.onnx.quantization.config.config import (
    AnyCalibrationMethod,
    QConfig,
    QuantizationConfig,
)
from lowbit.quark.onnx.quantization.config.custom_config import block_attributes
from lowbit.quark.onnx.quantization.config.spec import (
    CalibMethod,
    QTensorConfig,
    QuantGranularity,
    ScaleType,
)
from lowbit.quark.onnx.quantization.quant_utils import (
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)
from lowbit.quark.translate.selection import LayerException
from lowbit.quark.translate.specs import group_of

_METHODS: dict[CalibMethod, AnyCalibrationMethod] = {
    CalibMethod.MinMax: CalibrationMethod.MinMax,
    CalibMethod.MinMSE: PowerOfTwoMethod.MinMSE,
    CalibMethod.Percentile: CalibrationMethod.Percentile,
    CalibMethod.Entropy: CalibrationMethod.Entropy,
    CalibMethod.LayerwisePercentile: LayerWiseMethod.LayerWisePercentile,
    CalibMethod.Distribution: CalibrationMethod.Distribution,
}
_EIGHT = ("Int8", "UInt8")


def to_legacy(config: QConfig) -> QuantizationConfig:
    """Return the older configuration that means the same, exceptions by layer aside."""
    inputs, weight = _parts(config)
    options = {
        **_symmetry(inputs, weight),
        **_weight_method(weight),
        **block_attributes(inputs.data_type),
        **block_attributes(weight.data_type),
        **_bias_options(config.global_config.bias),
        **config.extra_options,
    }
    pof2 = inputs.scale_type is ScaleType.PowerOf2 and weight.scale_type is ScaleType.PowerOf2
    names = (inputs.data_type.__name__, weight.data_type.__name__)
    standard = all(name in _EIGHT for name in names)
    legacy = QuantizationConfig(
        calibrate_method=_method(inputs),
        quant_format=QuantFormat.QDQ if standard else ExtendedQuantFormat.QDQ,
        activation_type=inputs.data_type.map_onnx_format,
        weight_type=weight.data_type.map_onnx_format,
        nodes_to_exclude=[part for part in config.exclude if isinstance(part, str)],
        subgraphs_to_exclude=[part for part in config.exclude if not isinstance(part, str)],
        per_channel=weight.quant_granularity is QuantGranularity.Channel,
        use_external_data_format=config.use_external_data_format,
        include_cle=False,
        enable_npu_cnn=bool(config.extra_options.get("EnableNPUCnn", pof2)),
        convert_nchw_to_nhwc=bool(config.extra_options.get("ConvertNCHWToNHWC", False)),
        print_summary=bool(config.extra_options.get("PrintSummary", True)),
        ignore_warnings=bool(config.extra_options.get("IgnoreWarnings", True)),
        extra_options=options,
    )
    return with_algorithms(legacy, config.algo_config)


def with_algorithms(
    config: QuantizationConfig, algorithms: Iterable[AlgoConfig]
) -> QuantizationConfig:
    """Return a configuration that asks for the algorithms as well. Options given before win."""
    options = dict(config.extra_options)
    fields: dict[str, bool] = {}
    for algorithm in _without_conflict(algorithms):
        options = _merged(algorithm.get_options(), options)
        for kind, field in (
            (SmoothQuantConfig, "include_sq"),
            (QuarotConfig, "include_rotation"),
            (CLEConfig, "include_cle"),
            (AutoMixprecisionConfig, "include_auto_mp"),
            (AdaRoundConfig, "include_fast_ft"),
        ):
            if isinstance(algorithm, kind):
                fields[field] = True
    return dataclasses.replace(config, **fields, extra_options=options)  # type: ignore[arg-type]


def weight_group(config: QConfig) -> int | None:
    """Return how many weights of a matrix share a scale, if they are to be in groups."""
    return group_of(_parts(config)[1])


def layer_exceptions(config: QConfig) -> tuple[LayerException, ...]:
    """Return the exceptions by layer; those by name come last and win."""
    by_type = [
        LayerException(layer, op_types=tuple(types))
        for layer, types in config.layer_type_config.items()
    ]
    by_name = [
        LayerException(layer, names=tuple(names))
        for layer, names in config.specific_layer_config.items()
    ]
    return (*by_type, *by_name)


def _parts(config: QConfig) -> tuple[QTensorConfig, QTensorConfig]:
    layer = config.global_config
    inputs, weight = layer.inputs(), layer.weight
    if inputs is None:
        raise QuarkConfigError("global_config needs input_tensors")
    if weight is None:
        raise QuarkConfigError("global_config needs weight")
    if layer.output_tensors is not None:
        say("global_config.output_tensors has no effect: outputs are inputs of what follows")
    return inputs, weight


def _method(inputs: QTensorConfig) -> AnyCalibrationMethod:
    if inputs.scale_type is ScaleType.Int16:
        return Int16Method.MinMax
    if inputs.scale_type is ScaleType.PowerOf2:
        if inputs.calibration_method is CalibMethod.MinMax:
            return PowerOfTwoMethod.NonOverflow
        if inputs.calibration_method is not CalibMethod.MinMSE:
            # As in Quark, the method wins over the type of scale.
            say(
                f"calibration_method={inputs.calibration_method.name} gives scales that are no powers "
                "of two, which the NPU cannot run; MinMSE and MinMax give powers of two"
            )
    return _METHODS[inputs.calibration_method]


def _symmetry(inputs: QTensorConfig, weight: QTensorConfig) -> dict[str, Any]:
    return {"ActivationSymmetric": inputs.symmetric, "WeightSymmetric": weight.symmetric}


def _weight_method(weight: QTensorConfig) -> dict[str, Any]:
    if weight.scale_type is not ScaleType.Float32:
        return {}
    if weight.calibration_method is CalibMethod.MinMSE:
        return {"WeightCalibrateMethod": ExtendedCalibrationMethod.MinMSE}
    return {"WeightCalibrateMethod": CalibrationMethod.MinMax}


def _bias_options(bias: QTensorConfig | None) -> dict[str, Any]:
    """Return what a spec of all biases means, which Quark accepts and does not read."""
    if bias is None:
        return {}
    name = bias.data_type.__name__
    return {"Int32Bias": name in ("Int32", "UInt32"), "Int16Bias": name in ("Int16", "UInt16")}


def _without_conflict(algorithms: Iterable[AlgoConfig]) -> list[AlgoConfig]:
    """Return the algorithms with only the first of AdaRound and AdaQuant."""
    kept: list[AlgoConfig] = []
    for algorithm in algorithms:
        tunes = isinstance(algorithm, AdaRoundConfig)
        if tunes and any(isinstance(other, AdaRoundConfig) for other in kept):
            say(f"only one of AdaRound and AdaQuant can be used: {algorithm.name} is skipped")
        else:
            kept.append(algorithm)
    return kept


def _merged(algorithm: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the algorithm's options under those the user gave, dictionaries key by key."""
    merged = dict(algorithm)
    for key, value in given.items():
        inside = merged.get(key)
        merged[key] = (
            {**inside, **value} if isinstance(inside, dict) and isinstance(value, dict) else value
        )
    return merged
