"""The two configurations of Quark: ``QuantizationConfig`` (in ``Config``), the older one, and ``QConfig``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from onnxruntime.quantization.calibrate import CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType

from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.config.algorithm import AlgoConfig, plain
from lowbit.quark.onnx.quantization.config.algorithm import from_dict as algorithm_from_dict
from lowbit.quark.onnx.quantization.config.spec import QLayerConfig
from lowbit.quark.onnx.quantization.quant_utils import (
    AnyQuantFormat,
    AnyQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)

__all__ = [
    "AnyCalibrationMethod",
    "CalibrationMethod",
    "Config",
    "QConfig",
    "QuantizationConfig",
    "Subgraph",
    "get_default_config",
]

AnyCalibrationMethod: TypeAlias = (
    CalibrationMethod | PowerOfTwoMethod | Int16Method | LayerWiseMethod
)
Subgraph: TypeAlias = tuple[list[str], list[str]]


@dataclasses.dataclass
class QuantizationConfig:
    """A quantization configuration. ``extra_options`` is described in docs/quark-options.md."""

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


@dataclasses.dataclass
class Config:
    """The older configuration, as ``ModelQuantizer`` takes it."""

    global_quant_config: QuantizationConfig


@dataclasses.dataclass(init=False)
class QConfig:
    """The newer configuration: layers, exceptions from them, and algorithms."""

    global_config: QLayerConfig
    specific_layer_config: dict[QLayerConfig, list[str]]
    layer_type_config: dict[QLayerConfig | None, list[str]]
    exclude: list[Any]
    algo_config: list[AlgoConfig]
    use_external_data_format: bool
    extra_options: dict[str, Any]

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: dict[QLayerConfig, list[str]] | None = None,
        layer_type_config: dict[QLayerConfig | None, list[str]] | None = None,
        exclude: list[Any] | None = None,
        algo_config: list[AlgoConfig] | None = None,
        use_external_data_format: bool = False,  # noqa: FBT001, FBT002
        extra_options: Mapping[str, Any] | None = None,
        **bare: Any,
    ) -> None:
        if bare:
            say(
                f"QConfig: give {', '.join(bare)} inside extra_options; bare options are deprecated"
            )
        self.global_config = global_config
        self.specific_layer_config = dict(specific_layer_config or {})
        self.layer_type_config = dict(layer_type_config or {})
        self.exclude = list(exclude or [])
        self.algo_config = list(algo_config or [])
        self.use_external_data_format = use_external_data_format
        self.extra_options = {**bare, **(extra_options or {})}

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain values."""
        return {
            "global_config": self.global_config.to_dict(),
            "specific_layer_config": _pairs(self.specific_layer_config),
            "layer_type_config": _pairs(self.layer_type_config),
            "exclude": plain(self.exclude),
            "algo_config": [algorithm.to_dict() for algorithm in self.algo_config],
            "use_external_data_format": self.use_external_data_format,
            "extra_options": plain(self.extra_options),
        }

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> QConfig:
        """Return the configuration that ``to_dict`` wrote."""
        if "global_config" not in d:
            raise QuarkConfigError("the dictionary of a QConfig needs 'global_config'")
        return QConfig(
            global_config=QLayerConfig.from_dict(d["global_config"]),
            specific_layer_config={
                QLayerConfig.from_dict(layer): names
                for layer, names in d.get("specific_layer_config", [])
            },
            layer_type_config={
                None if layer is None else QLayerConfig.from_dict(layer): types
                for layer, types in d.get("layer_type_config", [])
            },
            exclude=[
                tuple(part) if isinstance(part, list) else part for part in d.get("exclude", [])
            ],
            algo_config=[algorithm_from_dict(part) for part in d.get("algo_config", [])],
            use_external_data_format=d.get("use_external_data_format", False),
            extra_options=d.get("extra_options", {}),
        )

    @staticmethod
    def get_default_config(config_name: str) -> Config:
        """Return a preset; ``XINT8_CONFIG`` means ``XINT8``."""
        return Config(global_quant_config=get_default_config(config_name))


def get_default_config(config_name: str) -> QuantizationConfig:
    """Return a copy of a preset. Its home is ``custom_config``; scripts look for it here too."""
    from lowbit.quark.onnx.quantization.config import custom_config

    return custom_config.get_default_config(config_name)


def _pairs(layers: Mapping[Any, list[str]]) -> list[list[Any]]:
    return [[None if key is None else key.to_dict(), list(names)] for key, names in layers.items()]
