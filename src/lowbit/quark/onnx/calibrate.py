"""The older name of ``quark.onnx.calibration``."""

from onnxruntime.quantization.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    MinMaxCalibrater,
)

from lowbit.quark.onnx.calibration import (
    CachedDataReader,
    Int16Method,
    LayerWiseMethod,
    PathDataReader,
    PowerOfTwoMethod,
    RandomDataReader,
    create_calibrator_float_scale,
    create_calibrator_power_of_two,
)

__all__ = [
    "CachedDataReader",
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Int16Method",
    "LayerWiseMethod",
    "MinMaxCalibrater",
    "PathDataReader",
    "PowerOfTwoMethod",
    "RandomDataReader",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
]
