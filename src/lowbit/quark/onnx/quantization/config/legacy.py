"""Quark's older configuration: one flat list of fields."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

from onnxruntime.quantization.calibrate import CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType

from lowbit.quark.onnx.calibration.methods import Int16Method, LayerWiseMethod, PowerOfTwoMethod
from lowbit.quark.onnx.quantization.quant_utils import AnyQuantFormat, AnyQuantType

AnyCalibrationMethod: TypeAlias = (
    CalibrationMethod | PowerOfTwoMethod | Int16Method | LayerWiseMethod
)
Subgraph: TypeAlias = tuple[list[str], list[str]]


@dataclasses.dataclass
class QuantizationConfig:
    """What to quantize to what. ``extra_options`` is described in docs/quark-options.md."""

    calibrate_method: AnyCalibrationMethod = CalibrationMethod.MinMax
    quant_format: AnyQuantFormat = QuantFormat.QDQ
    activation_type: AnyQuantType = QuantType.QInt8
    weight_type: AnyQuantType = QuantType.QInt8
    input_nodes: list[str] = dataclasses.field(default_factory=list)
    output_nodes: list[str] = dataclasses.field(default_factory=list)
    op_types_to_quantize: list[str] = dataclasses.field(default_factory=list)
    nodes_to_quantize: list[str] = dataclasses.field(default_factory=list)
    extra_op_types_to_quantize: list[str] = dataclasses.field(default_factory=list)
    nodes_to_exclude: list[str] = dataclasses.field(default_factory=list)
    subgraphs_to_exclude: list[Subgraph] = dataclasses.field(default_factory=list)
    specific_tensor_precision: bool = False
    execution_providers: list[str] = dataclasses.field(
        default_factory=lambda: ["CPUExecutionProvider"]
    )
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_sq: bool = False
    include_rotation: bool = False
    include_cle: bool = True
    include_auto_mp: bool = False
    include_fast_ft: bool = False
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    debug_mode: bool = False
    crypto_mode: bool = False
    print_summary: bool = True
    ignore_warnings: bool = True
    log_severity_level: int | None = None
    extra_options: dict[str, Any] = dataclasses.field(default_factory=dict)
