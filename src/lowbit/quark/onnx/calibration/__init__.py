"""Calibration by Quark's names."""

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
from lowbit.quark.onnx.calibration.methods import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)

__all__ = [
    "CachedDataReader",
    "ExtendedCalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "PathDataReader",
    "PowerOfTwoMethod",
    "RandomDataReader",
    "calibrate_model",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
    "get_data_reader",
]
