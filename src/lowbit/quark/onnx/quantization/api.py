"""``ModelQuantizer``: the one class every Quark script uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.quantization.config.algorithm import AlgoConfig
from lowbit.quark.onnx.quantization.config.config import Config, QConfig
from lowbit.quark.onnx.quantization.config.legacy import QuantizationConfig


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
