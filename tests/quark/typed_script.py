"""A Quark script as people write them. A type checker reads it, and a test runs it."""

# ruff: noqa: T201

import sys
from pathlib import Path

import numpy as np
import onnx
from quark.onnx import (
    XINT8_QCONFIG,
    AdaRoundConfig,
    CLEConfig,
    ExtendedQuantFormat,
    ExtendedQuantType,
    ModelQuantizer,
    PowerOfTwoMethod,
    QuantType,
    get_library_path,
)
from quark.onnx.calibration import CachedDataReader
from quark.onnx.quant_utils import VitisQuantFormat, VitisQuantType
from quark.onnx.quantization.config import Config, QConfig, QuantizationConfig, get_default_config
from quark.onnx.quantization.config.spec import Int8Spec, QLayerConfig, UInt8Spec
from quark.onnx.tools.evaluate import main as evaluate


class Reader:
    """Two feeds."""

    def __init__(self) -> None:
        self.left = 2

    def get_next(self) -> "dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]] | None":
        """Return the next feed."""
        self.left -= 1
        return {"input": np.full((1, 3, 14, 14), self.left, np.float32)} if self.left >= 0 else None


def legacy(model: Path) -> onnx.ModelProto:
    """Quantize by the older API."""
    config: QuantizationConfig = get_default_config("A8W8")
    config.print_summary = False
    quantized: onnx.ModelProto | None = ModelQuantizer(Config(config)).quantize_model(
        model_input=model, calibration_data_reader=CachedDataReader(Reader())
    )
    assert quantized is not None
    return quantized


def newer(model: str) -> None:
    """Quantize by the newer API."""
    layer = QLayerConfig(input_tensors=UInt8Spec(), weight=Int8Spec())
    config = QConfig(layer, algo_config=[CLEConfig(cle_steps=2)], extra_options={"NumBins": 1024})
    config.extra_options["PrintSummary"] = False
    assert QConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    ModelQuantizer(config).quantize_model(model, "newer.onnx", Reader())


if __name__ == "__main__":
    newer(sys.argv[1])
    print(len(legacy(Path(sys.argv[1])).graph.node) > 20, Path(get_library_path("CPU")).name)
    print(AdaRoundConfig(num_iterations=5).num_iterations, len(XINT8_QCONFIG.extra_options))
    names = (PowerOfTwoMethod.MinMSE, QuantType.QInt8, ExtendedQuantType.QBFloat16)
    print(*(name.name for name in names), ExtendedQuantFormat.QDQ, VitisQuantFormat.QDQ)
    print(VitisQuantType.QInt16, callable(evaluate))
