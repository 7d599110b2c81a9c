"""Quark's presets, by the names and with the values that Quark 0.13 gives them.

``get_default_config`` returns copies. What a preset means for a model is decided in
``lowbit.quark.translate``, from the same fields a user can set.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from onnxruntime.quantization.calibrate import CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType

from lowbit.config.specs import BLOCKS, MxSpec
from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.quantization.config import data_type as types
from lowbit.quark.onnx.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig
from lowbit.quark.onnx.quantization.config.config import (
    AnyCalibrationMethod,
    QConfig,
    QuantizationConfig,
)
from lowbit.quark.onnx.quantization.config.spec import (
    BFloat16Spec,
    BFP16Spec,
    Int8Spec,
    Int16Spec,
    MXInt8Spec,
    QLayerConfig,
    QTensorConfig,
    XInt8Spec,
)
from lowbit.quark.onnx.quantization.quant_utils import (
    AnyQuantType,
    ExtendedQuantFormat,
    ExtendedQuantType,
    PowerOfTwoMethod,
)
from lowbit.quark.translate.options import OPTIONS

DEFAULT_ADAROUND_PARAMS: dict[str, Any] = {
    "DataSize": 1000,
    "FixedSeed": 1705472343,
    "BatchSize": 2,
    "NumIterations": 1000,
    "LearningRate": 0.1,
    "OptimAlgorithm": "adaround",
    "OptimDevice": "cpu",
    "InferDevice": "cpu",
    "EarlyStop": True,
}
DEFAULT_ADAQUANT_PARAMS: dict[str, Any] = {
    **DEFAULT_ADAROUND_PARAMS,
    "LearningRate": 0.00001,
    "OptimAlgorithm": "adaquant",
}
DEFAULT_BFP_PARAMS: dict[str, Any] = {
    "bfp_method": "to_bfp",
    "axis": 1,
    "bit_width": 16,
    "block_size": 8,
    "rounding_mode": 2,
}
DEFAULT_MICROEXPONENTS_PARAMS: dict[str, Any] = {
    "bfp_method": "to_bfp_prime",
    "axis": 1,
    "bit_width": 13,
    "block_size": 16,
    "sub_block_size": 2,
    "sub_block_shift_bits": 1,
    "rounding_mode": 2,
}
DEFAULT_MICROSCALING_PARAMS: dict[str, Any] = {
    "element_dtype": "int8",
    "axis": 1,
    "block_size": 32,
    "rounding_mode": 2,
}

_MINMAX, _PERCENTILE = CalibrationMethod.MinMax, CalibrationMethod.Percentile
_S8, _U8 = QuantType.QInt8, QuantType.QUInt8
_S16, _U16 = ExtendedQuantType.QInt16, ExtendedQuantType.QUInt16
_F16, _BF16 = ExtendedQuantType.QFloat16, ExtendedQuantType.QBFloat16
_BFP, _MX = ExtendedQuantType.QBFP, ExtendedQuantType.QMX

_FORCE = {"ForceQuantizeNoInputCheck": True}
_SYMMETRIC = {"ActivationSymmetric": True, **_FORCE}
_ALIGNED = {**_SYMMETRIC, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_ALIGNED16 = {**_ALIGNED, "AlignEltwiseQuantType": True}
_P6 = {"Percentile": 99.9999}
_ALL_TYPES = {"QuantizeAllOpTypes": True, **_FORCE}
_VINT8 = {
    "ActivationSymmetric": True,
    "UseRandomData": True,
    "ConvertBNToConv": True,
    "ConvertSigmoidToHardSigmoid": False,
    "ConvertClipToRelu": True,
    "ConvertSplitToSlice": True,
    "SplitLargeKernelPool": False,
    "ReplaceClip6Relu": True,
    "ConvertReduceMeanToGlobalAvgPool": False,
    "RemoveQDQConvClip": False,
    "RemoveQDQConvPRelu": False,
    "RemoveQDQConvRelu": False,
    "RemoveQDQConvLeakyRelu": False,
    "Int32Bias": False,
    "DedicatedQDQPair": True,
    "QuantizeAllOpTypes": True,
}


def _standard(
    method: AnyCalibrationMethod,
    activation: AnyQuantType,
    weight: AnyQuantType,
    options: Mapping[str, Any],
    **fields: Any,
) -> QuantizationConfig:
    """Return a configuration with Q/DQ of the standard operator set."""
    return QuantizationConfig(
        calibrate_method=method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation,
        weight_type=weight,
        extra_options=dict(options),
        **fields,
    )


def _extended(
    method: AnyCalibrationMethod,
    activation: AnyQuantType,
    weight: AnyQuantType,
    options: Mapping[str, Any],
    **fields: Any,
) -> QuantizationConfig:
    """Return a configuration with Q/DQ of the extended operator sets."""
    standard = _standard(method, activation, weight, options, **fields)
    return dataclasses.replace(standard, quant_format=ExtendedQuantFormat.QDQ)


def _tuned(config: QuantizationConfig, parameters: Mapping[str, Any]) -> QuantizationConfig:
    """Return the same configuration with fast finetuning."""
    options = {**config.extra_options, "FastFinetune": dict(parameters)}
    return dataclasses.replace(config, include_fast_ft=True, extra_options=options)


def block_attributes(kind: type[types.DataType]) -> dict[str, dict[str, Any]]:
    """Return the options that say which block format a data type is."""
    spec = BLOCKS.get(kind.__name__.upper())
    if spec is None:
        return {}
    if isinstance(spec, MxSpec):
        element = {"element_dtype": spec.element.value}
        return {"MXAttributes": {**DEFAULT_MICROSCALING_PARAMS, **element}}
    usual = DEFAULT_MICROEXPONENTS_PARAMS if spec.pairs else DEFAULT_BFP_PARAMS
    return {"BFPAttributes": {**usual, "bit_width": spec.bits}}


def _mixed(spec: QTensorConfig, **more: Any) -> dict[str, Any]:
    layer = QLayerConfig(input_tensors=spec, weight=spec, bias=spec)
    return {"AutoMixprecision": {"TargetLayerConfig": layer, **more}}


_BFP16 = block_attributes(types.BFP16)
_BF16_MIXED = {
    "ActivationSymmetric": True,
    "QuantizeBias": False,
    "DedicateDQNode": True,
    "CalibDataSize": 1,
}
_ROUND, _QUANT = DEFAULT_ADAROUND_PARAMS, DEFAULT_ADAQUANT_PARAMS

UINT8_DYNAMIC_QUANT_CONFIG = _standard(_MINMAX, _S8, _U8, {}, use_dynamic_quant=True)
XINT8_CONFIG = _standard(PowerOfTwoMethod.MinMSE, _U8, _S8, _SYMMETRIC, enable_npu_cnn=True)
XINT8_ADAROUND_CONFIG = _tuned(XINT8_CONFIG, _ROUND)
XINT8_ADAQUANT_CONFIG = _tuned(XINT8_CONFIG, _QUANT)
VINT8_CONFIG = _standard(PowerOfTwoMethod.MinMSE, _S8, _S8, _VINT8, optimize_model=False)
S8S8_AAWS_CONFIG = _standard(_PERCENTILE, _S8, _S8, {**_P6, **_FORCE})
S8S8_AAWS_ADAROUND_CONFIG = _tuned(S8S8_AAWS_CONFIG, _ROUND)
S8S8_AAWS_ADAQUANT_CONFIG = _tuned(S8S8_AAWS_CONFIG, _QUANT)
U8S8_AAWS_CONFIG = _standard(_PERCENTILE, _U8, _S8, _FORCE)
U8S8_AAWS_ADAROUND_CONFIG = _tuned(U8S8_AAWS_CONFIG, _ROUND)
U8S8_AAWS_ADAQUANT_CONFIG = _tuned(U8S8_AAWS_CONFIG, _QUANT)
U8U8_AAWA_CONFIG = _standard(
    _PERCENTILE, _U8, _U8, {"ActivationSymmetric": False, **_FORCE, "WeightSymmetric": False}
)
S16S8_ASWS_CONFIG = _extended(_PERCENTILE, _S16, _S8, _SYMMETRIC)
S16S8_ASWS_ADAROUND_CONFIG = _tuned(S16S8_ASWS_CONFIG, _ROUND)
S16S8_ASWS_ADAQUANT_CONFIG = _tuned(S16S8_ASWS_CONFIG, _QUANT)
A8W8_CONFIG = _extended(_MINMAX, _S8, _S8, _ALIGNED)
A8W8_ADAROUND_CONFIG = _tuned(A8W8_CONFIG, _ROUND)
A8W8_ADAQUANT_CONFIG = _tuned(A8W8_CONFIG, _QUANT)
A16W8_CONFIG = _extended(_MINMAX, _S16, _S8, _ALIGNED16)
A16W8_ADAROUND_CONFIG = _tuned(A16W8_CONFIG, _ROUND)
A16W8_ADAQUANT_CONFIG = _tuned(A16W8_CONFIG, _QUANT)
U16S8_AAWS_CONFIG = _extended(_PERCENTILE, _U16, _S8, _FORCE)
U16S8_AAWS_ADAROUND_CONFIG = _tuned(U16S8_AAWS_CONFIG, _ROUND)
U16S8_AAWS_ADAQUANT_CONFIG = _tuned(U16S8_AAWS_CONFIG, _QUANT)
FP16_CONFIG = _extended(_MINMAX, _F16, _F16, _FORCE)
FP16_ADAQUANT_CONFIG = _tuned(FP16_CONFIG, _QUANT)
BF16_CONFIG = _extended(_MINMAX, _BF16, _BF16, _ALL_TYPES)
BF16_ADAQUANT_CONFIG = _tuned(BF16_CONFIG, _QUANT)
BFP16_CONFIG = _extended(_MINMAX, _BFP, _BFP, _BFP16)
BFP16_ADAQUANT_CONFIG = _tuned(BFP16_CONFIG, _QUANT)
MX4_CONFIG = _extended(_MINMAX, _BFP, _BFP, block_attributes(types.MX4))
MX4_ADAQUANT_CONFIG = _tuned(MX4_CONFIG, _QUANT)
MX6_CONFIG = _extended(_MINMAX, _BFP, _BFP, block_attributes(types.MX6))
MX6_ADAQUANT_CONFIG = _tuned(MX6_CONFIG, _QUANT)
MX9_CONFIG = _extended(_MINMAX, _BFP, _BFP, block_attributes(types.MX9))
MX9_ADAQUANT_CONFIG = _tuned(MX9_CONFIG, _QUANT)
MXFP8E5M2_CONFIG = _extended(_MINMAX, _MX, _MX, block_attributes(types.MXFP8E5M2))
MXFP8E5M2_ADAQUANT_CONFIG = _tuned(MXFP8E5M2_CONFIG, _QUANT)
MXFP8E4M3_CONFIG = _extended(_MINMAX, _MX, _MX, block_attributes(types.MXFP8E4M3))
MXFP8E4M3_ADAQUANT_CONFIG = _tuned(MXFP8E4M3_CONFIG, _QUANT)
MXFP6E3M2_CONFIG = _extended(_MINMAX, _MX, _MX, block_attributes(types.MXFP6E3M2))
MXFP6E3M2_ADAQUANT_CONFIG = _tuned(MXFP6E3M2_CONFIG, _QUANT)
MXFP6E2M3_CONFIG = _extended(_MINMAX, _MX, _MX, block_attributes(types.MXFP6E2M3))
MXFP6E2M3_ADAQUANT_CONFIG = _tuned(MXFP6E2M3_CONFIG, _QUANT)
MXFP4E2M1_CONFIG = _extended(_MINMAX, _MX, _MX, block_attributes(types.MXFP4E2M1))
MXFP4E2M1_ADAQUANT_CONFIG = _tuned(MXFP4E2M1_CONFIG, _QUANT)
MXINT8_CONFIG = _extended(_MINMAX, _MX, _MX, block_attributes(types.MXInt8))
MXINT8_ADAQUANT_CONFIG = _tuned(MXINT8_CONFIG, _QUANT)
S16S16_MIXED_S8S8_CONFIG = _extended(
    _PERCENTILE,
    _S16,
    _S16,
    {
        **_P6,
        "Int32Bias": False,
        "Int16Bias": False,
        "WeightSymmetric": True,
        "ActivationSymmetric": False,
        **_FORCE,
        **_mixed(Int8Spec()),
    },
    include_auto_mp=True,
)
BF16_MIXED_BFP16_CONFIG = _extended(
    _MINMAX,
    _BF16,
    _BF16,
    {**_BF16_MIXED, **_mixed(BFP16Spec(), DualQuantNodes=True)},
    include_auto_mp=True,
)
BF16_MIXED_BFP16_ADAQUANT_CONFIG = _tuned(BF16_MIXED_BFP16_CONFIG, _QUANT)
BF16_MIXED_MXINT8_CONFIG = _extended(
    _MINMAX,
    _BF16,
    _BF16,
    {**_BF16_MIXED, **_mixed(MXInt8Spec(), DualQuantNodes=True)},
    include_auto_mp=True,
)
BF16_MIXED_MXINT8_ADAQUANT_CONFIG = _tuned(BF16_MIXED_MXINT8_CONFIG, _QUANT)
BF16_BFP16_CONFIG = _extended(_MINMAX, _BF16, _BFP, _BFP16)
BF16_MXINT8_CONFIG = _extended(_MINMAX, _BF16, _MX, block_attributes(types.MXInt8))
MX9_INT8_CONFIG = _extended(_MINMAX, _BFP, _S8, block_attributes(types.MX9))
INT8_CNN_DEFAULT_CONFIG = _standard(_MINMAX, _U8, _S8, _FORCE)
INT16_CNN_DEFAULT_CONFIG = _extended(_MINMAX, _U16, _S16, _FORCE)
INT8_TRANSFORMER_DEFAULT_CONFIG = _standard(
    _MINMAX, _U8, _S8, {"CalibMovingAverage": True}, enable_npu_transformer=True
)
INT16_TRANSFORMER_DEFAULT_CONFIG = _extended(
    _MINMAX, _U16, _S16, {"CalibMovingAverage": True}, enable_npu_transformer=True
)
INT8_CNN_ACCURATE_CONFIG = _tuned(_standard(_PERCENTILE, _U8, _S8, {**_P6, **_FORCE}), _ROUND)
INT16_CNN_ACCURATE_CONFIG = _tuned(_extended(_PERCENTILE, _U16, _S16, {**_P6, **_FORCE}), _ROUND)
INT8_TRANSFORMER_ACCURATE_CONFIG = _tuned(
    _standard(_PERCENTILE, _U8, _S8, _P6, enable_npu_transformer=True), _ROUND
)
INT16_TRANSFORMER_ACCURATE_CONFIG = _tuned(
    _extended(_PERCENTILE, _U16, _S16, _P6, enable_npu_transformer=True), _ROUND
)
MATMUL_NBITS_CONFIG = QuantizationConfig(
    extra_options={
        "UseMatMulNBits": True,
        "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
    }
)

DefaultConfigMapping: dict[str, QuantizationConfig] = {
    name.removesuffix("_CONFIG"): value
    for name, value in list(globals().items())
    if isinstance(value, QuantizationConfig)
}


# A constant of its own in Quark too, without a name for get_default_config.
XINT8_WEIGHTSONLY_ADAROUND_CONFIG = dataclasses.replace(
    XINT8_ADAROUND_CONFIG,
    extra_options={
        "ActivationSymmetric": True,
        "WeightsOnly": True,
        "FastFinetune": DEFAULT_ADAROUND_PARAMS,
    },
)


def get_default_config_mapping() -> dict[str, QuantizationConfig]:
    """Return every preset by name."""
    return copy.deepcopy(DefaultConfigMapping)


def get_default_config(config_name: str) -> QuantizationConfig:
    """Return a copy of a preset; ``XINT8_CONFIG`` means ``XINT8``."""
    name = config_name.removesuffix("_CONFIG")
    if name not in DefaultConfigMapping:
        raise QuarkConfigError(
            f"no preset of Quark is called {config_name!r}{did_you_mean(name, DefaultConfigMapping)}"
        )
    return copy.deepcopy(DefaultConfigMapping[name])


_QALIGNED = {**_FORCE, "AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
_QALIGNED16 = {**_QALIGNED, "AlignEltwiseQuantType": True}
_QVINT8 = {
    **{key: value for key, value in _VINT8.items() if key != "ActivationSymmetric"},
    "OptimizeModel": False,
    "EnableNPUCnn": False,
}


def _qconfig(
    activation: QTensorConfig,
    weight: QTensorConfig,
    options: Mapping[str, Any],
    *algorithms: AdaRoundConfig,
) -> QConfig:
    return QConfig(
        global_config=QLayerConfig(activation=activation, weight=weight),
        algo_config=list(algorithms),
        extra_options=options,
    )


def _adaround() -> AdaRoundConfig:
    return AdaRoundConfig(learning_rate=0.1, num_iterations=1000)


def _adaquant() -> AdaRoundConfig:
    return AdaQuantConfig(learning_rate=0.00001, num_iterations=3000)


XINT8_QCONFIG = _qconfig(XInt8Spec(), XInt8Spec(), _FORCE)
XINT8_ADAROUND_QCONFIG = _qconfig(XInt8Spec(), XInt8Spec(), _FORCE, _adaround())
XINT8_ADAQUANT_QCONFIG = _qconfig(XInt8Spec(), XInt8Spec(), _FORCE, _adaquant())
VINT8_QCONFIG = _qconfig(XInt8Spec(), XInt8Spec(), _QVINT8)
A8W8_QCONFIG = _qconfig(Int8Spec(), Int8Spec(), _QALIGNED)
A8W8_ADAROUND_QCONFIG = _qconfig(Int8Spec(), Int8Spec(), _QALIGNED, _adaround())
A8W8_ADAQUANT_QCONFIG = _qconfig(Int8Spec(), Int8Spec(), _QALIGNED, _adaquant())
A16W8_QCONFIG = _qconfig(Int16Spec(), Int8Spec(), _QALIGNED16)
A16W8_ADAROUND_QCONFIG = _qconfig(Int16Spec(), Int8Spec(), _QALIGNED16, _adaround())
A16W8_ADAQUANT_QCONFIG = _qconfig(Int16Spec(), Int8Spec(), _QALIGNED16, _adaquant())
BF16_QCONFIG = _qconfig(BFloat16Spec(), BFloat16Spec(), _FORCE)
BFP16_QCONFIG = _qconfig(BFP16Spec(), BFP16Spec(), {})

QCONFIG_ALL_PARAMS = {*(field.name for field in dataclasses.fields(QConfig)), *OPTIONS}
"""The words that ``QConfig`` takes."""
