"""AMD's ``vai_q_onnx``, the predecessor of Quark, on the same layer: scripts in the wild import it.

Its submodules are those of ``lowbit.quark.onnx`` (``lowbit/quark/alias.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    MinMaxCalibrater,
)
from onnxruntime.quantization.quant_utils import (
    QuantFormat,
    QuantizationMode,
    QuantType,
    write_calibration_table,
)

from lowbit.quark import __version__, git_version
from lowbit.quark.onnx.algorithm import optimize
from lowbit.quark.onnx.calibration import (
    Int16Method,
    PowerOfTwoMethod,
    RandomDataReader,
    create_calibrator_float_scale,
    create_calibrator_power_of_two,
)
from lowbit.quark.onnx.model_helpers import dump_model
from lowbit.quark.onnx.operators import _COP_DOMAIN, _COP_VERSION, get_library_path
from lowbit.quark.onnx.quantization import api as newer
from lowbit.quark.onnx.quantization.api import quantize_dynamic
from lowbit.quark.onnx.quantization.config.config import AnyCalibrationMethod
from lowbit.quark.onnx.quantization.quant_utils import (
    AnyQuantFormat,
    AnyQuantType,
    VitisExtendedQuantizer,
    VitisQuantFormat,
    VitisQuantType,
)

__git_version__ = git_version
# Submodules are found by name, in no folder.
__path__: list[str] = []


def quantize_static(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path | None = None,
    calibration_data_reader: Any = None,
    quant_format: AnyQuantFormat = QuantFormat.QDQ,
    *,
    calibrate_method: AnyCalibrationMethod = PowerOfTwoMethod.MinMSE,
    activation_type: AnyQuantType = QuantType.QInt8,
    weight_type: AnyQuantType = QuantType.QInt8,
    enable_dpu: bool = False,
    use_dpu: bool = False,
    enable_ipu_cnn: bool = False,
    enable_npu_cnn: bool = False,
    enable_ipu_transformer: bool = False,
    enable_npu_transformer: bool = False,
    include_cle: bool = False,
    random_data_reader_input_shape: Mapping[str, Sequence[int]] | None = None,
    extra_options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> onnx.ModelProto | None:
    """Quantize a model; without a reader, on random data. ``fields`` are those of Quark's.

    The NPU's flow needs symmetric activations: they are, unless the options say otherwise.
    """
    npu_cnn = enable_dpu or use_dpu or enable_ipu_cnn or enable_npu_cnn
    options = dict(extra_options or {})
    if npu_cnn:
        options.setdefault("ActivationSymmetric", True)
    if calibration_data_reader is None and fields.get("calibration_data_path") is None:
        options.setdefault("UseRandomData", True)
    if random_data_reader_input_shape:
        options.setdefault("RandomDataReaderInputShape", dict(random_data_reader_input_shape))
    return newer.quantize_static(
        model_input,
        model_output,
        calibration_data_reader,
        quant_format=quant_format,
        calibrate_method=calibrate_method,
        activation_type=activation_type,
        weight_type=weight_type,
        enable_npu_cnn=npu_cnn,
        enable_npu_transformer=enable_ipu_transformer or enable_npu_transformer,
        include_cle=include_cle,
        extra_options=options,
        **fields,
    )


__all__ = [
    "_COP_DOMAIN",
    "_COP_VERSION",
    "CalibraterBase",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Int16Method",
    "MinMaxCalibrater",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "QuantizationMode",
    "RandomDataReader",
    "VitisExtendedQuantizer",
    "VitisQuantFormat",
    "VitisQuantType",
    "__git_version__",
    "__version__",
    "create_calibrator_float_scale",
    "create_calibrator_power_of_two",
    "dump_model",
    "get_library_path",
    "optimize",
    "quantize_dynamic",
    "quantize_static",
    "write_calibration_table",
]
