"""Quark's types and calibration methods as lowbit's formats and methods."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from onnxruntime.quantization.calibrate import CalibrationMethod

from lowbit.config.methods import (
    Distribution,
    Entropy,
    LayerwisePercentile,
    Method,
    MinMax,
    MinMse,
    NonOverflow,
    Percentile,
)
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.calibration.methods import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)
from lowbit.quark.onnx.quantization.config.custom_config import (
    DEFAULT_BFP_PARAMS,
    DEFAULT_MICROEXPONENTS_PARAMS,
    DEFAULT_MICROSCALING_PARAMS,
)
from lowbit.quark.onnx.quantization.config.data_type import DataType
from lowbit.quark.onnx.quantization.quant_utils import (
    AnyQuantFormat,
    AnyQuantType,
    ExtendedQuantType,
    VitisQuantFormat,
)
from lowbit.quark.translate.options import ExtraOptions

_INTEGERS: Mapping[str, IntegerFormat] = MappingProxyType(
    {
        "QInt4": IntegerFormat.INT4,
        "QUInt4": IntegerFormat.UINT4,
        "QInt8": IntegerFormat.INT8,
        "QUInt8": IntegerFormat.UINT8,
        "QInt16": IntegerFormat.INT16,
        "QUInt16": IntegerFormat.UINT16,
    }
)
"""By the name of the member, which is the same in onnxruntime's and in both of Quark's types."""

_PAIRED = {"MX4": 11, "MX6": 13, "MX9": 16}
_ELEMENTS = {
    "MXFP4E2M1": "fp4_e2m1",
    "MXFP6E3M2": "fp6_e3m2",
    "MXFP6E2M3": "fp6_e2m3",
    "MXFP8E5M2": "fp8_e5m2",
    "MXFP8E4M3": "fp8_e4m3",
    "MXInt8": "int8",
}


def integer_format(kind: AnyQuantType) -> IntegerFormat:
    """Return the integer format of a quantized type."""
    name = getattr(kind, "name", str(kind))
    if name not in _INTEGERS:
        raise NotSupportedError(
            f"tensors of type {name} are not supported; integers of 4, 8 and 16 bits, 16-bit "
            "floats and block formats are"
        )
    return _INTEGERS[name]


def fixed_neuron(layout: AnyQuantFormat, kind: AnyQuantType) -> AnyQuantType:
    """Return the type that a format of the older names brings with it, or the one given."""
    if layout is VitisQuantFormat.BFPFixNeuron:
        return ExtendedQuantType.QBFP
    if layout is VitisQuantFormat.MXFixNeuron:
        return ExtendedQuantType.QMX
    return kind


def block_attributes(kind: type[DataType]) -> dict[str, dict[str, Any]]:
    """Return the options that say which block format a data type is."""
    name = kind.__name__
    if name == "BFP16":
        return {"BFPAttributes": dict(DEFAULT_BFP_PARAMS)}
    if name in _PAIRED:
        return {"BFPAttributes": {**DEFAULT_MICROEXPONENTS_PARAMS, "bit_width": _PAIRED[name]}}
    if name in _ELEMENTS:
        element = {"element_dtype": _ELEMENTS[name]}
        return {"MXAttributes": {**DEFAULT_MICROSCALING_PARAMS, **element}}
    return {}


def is_power_of_two(method: Any, options: ExtraOptions) -> bool:
    """Whether a calibration method asks for power-of-two scales."""
    return isinstance(method, PowerOfTwoMethod) and options.UsePowerOf2Scale is not False


def activation_method(method: Any, options: ExtraOptions) -> Method:
    """Return how Quark finds a range under this name, with the options it reads."""
    if method is CalibrationMethod.MinMax:
        return _minmax(options)
    if method is CalibrationMethod.Percentile:
        return Percentile(
            percentile=_given(options.Percentile, 99.999),
            histogram="growing",
            bins=_given(options.NumBins, 2048),
            symmetric_range=_given(options.CalibTensorRangeSymmetric, True),
        )
    if method is CalibrationMethod.Entropy:
        return Entropy(
            histogram="growing",
            bins=_given(options.NumBins, 128),
            levels=_given(options.NumQuantizedBins, 128),
        )
    if method is CalibrationMethod.Distribution:
        return Distribution()
    if isinstance(method, PowerOfTwoMethod):
        return _power_of_two(method, options)
    if method is LayerWiseMethod.LayerWisePercentile:
        return LayerwisePercentile(
            candidates=tuple(options.PercentileCandidates or (99.99, 99.999, 99.99999)),
            metric=options.LWPMetric or "mae",
            histogram="growing",
            bins=options.NumBins or 2048,
        )
    if isinstance(method, Int16Method):
        raise NotSupportedError(
            f"{method} is not supported: scales of the form m / 2**n are not built"
        )
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
    return MinMse(histogram="growing", bins=options.NumBins or 2048)


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


def _given(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value
