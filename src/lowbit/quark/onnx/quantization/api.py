"""``ModelQuantizer``, the one class every Quark script uses, and the same without a configuration object."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization.calibrate import CalibrationMethod
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType

from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.quantization.config.algorithm import AlgoConfig
from lowbit.quark.onnx.quantization.config.config import (
    AnyCalibrationMethod,
    Config,
    QConfig,
    QuantizationConfig,
    Subgraph,
)
from lowbit.quark.onnx.quantization.quant_utils import AnyQuantFormat, AnyQuantType

__all__ = ["ModelQuantizer", "quantize_dynamic", "quantize_static"]


class ModelQuantizer:
    """Quantizes models as a configuration says."""

    config: QuantizationConfig | QConfig

    def __init__(self, config: Config | QConfig | QuantizationConfig) -> None:
        # Scripts leave Config out, which adds nothing.
        inside = config.global_quant_config if isinstance(config, Config) else config
        if not isinstance(inside, (QConfig, QuantizationConfig)):
            raise QuarkConfigError(
                "ModelQuantizer takes a Config (of a QuantizationConfig), a QuantizationConfig or a "
                f"QConfig, not a {type(inside).__name__}"
            )
        self.config = inside

    def quantize_model(
        self,
        model_input: str | Path | onnx.ModelProto,
        model_output: str | Path | None = None,
        calibration_data_reader: Any = None,
        calibration_data_path: str | Path | None = None,
        algorithms: list[AlgoConfig] | None = None,
    ) -> onnx.ModelProto | None:
        """Quantize a model; write it, or return it if no output is given.

        The configuration is not changed, so that it can be used again.

        Args:
            model_input: The path of a float model, or the model.
            model_output: Where the quantized model is written.
            calibration_data_reader: An object with ``get_next()`` that gives dictionaries of
                arrays, ``None`` after the last.
            calibration_data_path: A folder of ``.npy`` files or images, instead of a reader.
            algorithms: Algorithms to run, with the older configuration; the newer one has
                ``algo_config``.
        """
        from lowbit.quark.running import Given, run

        given = Given(
            model=model_input,
            output=model_output,
            reader=calibration_data_reader,
            data_path=calibration_data_path,
        )
        return run(given, self.config, algorithms or [])


def quantize_static(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path | None = None,
    calibration_data_reader: Any = None,
    calibration_data_path: str | Path | None = None,
    quant_format: AnyQuantFormat = QuantFormat.QDQ,
    calibrate_method: AnyCalibrationMethod = CalibrationMethod.MinMax,
    input_nodes: Sequence[str] | None = (),
    output_nodes: Sequence[str] | None = (),
    op_types_to_quantize: Sequence[str] | None = (),
    extra_op_types_to_quantize: Sequence[str] | None = (),
    per_channel: bool = False,  # noqa: FBT001, FBT002
    reduce_range: bool = False,  # noqa: FBT001, FBT002
    activation_type: AnyQuantType = QuantType.QInt8,
    weight_type: AnyQuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = (),
    nodes_to_exclude: Sequence[str] | None = (),
    subgraphs_to_exclude: Sequence[Subgraph] | None = (),
    *,
    enable_dpu: bool = False,
    enable_npu_cnn: bool = False,
    include_cle: bool = True,
    extra_options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> onnx.ModelProto | None:
    """Quantize a model with calibration; ``fields`` are the rest of ``QuantizationConfig``'s."""
    from lowbit.quark.running import Given, run

    config = QuantizationConfig(
        quant_format=quant_format,
        calibrate_method=calibrate_method,
        input_nodes=list(input_nodes or ()),
        output_nodes=list(output_nodes or ()),
        op_types_to_quantize=list(op_types_to_quantize or ()),
        extra_op_types_to_quantize=list(extra_op_types_to_quantize or ()),
        per_channel=per_channel,
        reduce_range=reduce_range,
        activation_type=activation_type,
        weight_type=weight_type,
        nodes_to_quantize=list(nodes_to_quantize or ()),
        nodes_to_exclude=list(nodes_to_exclude or ()),
        subgraphs_to_exclude=list(subgraphs_to_exclude or ()),
        enable_npu_cnn=enable_npu_cnn or enable_dpu,
        include_cle=include_cle,
        extra_options=dict(extra_options or {}),
    )
    given = Given(
        model=model_input,
        output=model_output,
        reader=calibration_data_reader,
        data_path=calibration_data_path,
    )
    return run(given, dataclasses.replace(config, **fields), [])


def quantize_dynamic(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path | None = None,
    op_types_to_quantize: Sequence[str] | None = (),
    per_channel: bool = False,  # noqa: FBT001, FBT002
    reduce_range: bool = False,  # noqa: FBT001, FBT002
    weight_type: AnyQuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = (),
    nodes_to_exclude: Sequence[str] | None = (),
    subgraphs_to_exclude: Sequence[Subgraph] | None = (),
    use_external_data_format: bool = False,  # noqa: FBT001, FBT002
    debug_mode: bool = False,  # noqa: FBT001, FBT002
    crypto_mode: bool = False,  # noqa: FBT001, FBT002
    extra_options: Mapping[str, Any] | None = None,
) -> onnx.ModelProto | None:
    """Quantize weights; activations are quantized by the runtime as they come."""
    from lowbit.quark.running import Given, run

    config = QuantizationConfig(
        use_dynamic_quant=True,
        op_types_to_quantize=list(op_types_to_quantize or ()),
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=weight_type,
        nodes_to_quantize=list(nodes_to_quantize or ()),
        nodes_to_exclude=list(nodes_to_exclude or ()),
        subgraphs_to_exclude=list(subgraphs_to_exclude or ()),
        use_external_data_format=use_external_data_format,
        debug_mode=debug_mode,
        crypto_mode=crypto_mode,
        extra_options=dict(extra_options or {}),
    )
    return run(Given(model=model_input, output=model_output), config, [])
