"""Calibration by Quark's names."""

from onnxruntime.quantization.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    MinMaxCalibrater,
)

from lowbit.quark.onnx.calibration.calibrators import (
    calibrate_model,
    create_calibrator_float_scale,
    create_calibrator_power_of_two,
)
from lowbit.quark.onnx.calibration.data_readers import (
    CachedDataReader,
    PathDataReader,
    RandomDataReader,
    get_data_reader,
)
from lowbit.quark.onnx.quantization.quant_utils import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)

__all__ = [
    "CachedDataReader",
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "ExtendedCalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "MinMaxCalibrater",
    "PathDataReader",
    "PowerOfTwoMethod",
    "RandomDataReader",
    "calibrate_model",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
    "get_data_reader",
]
