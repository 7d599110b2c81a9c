"""Quantization by Quark's names."""

from lowbit.quark.onnx.quantization.config.algorithm import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    GPTQConfig,
    QuarotConfig,
    SmoothQuantConfig,
    _algo_flag,
)
from lowbit.quark.onnx.quantization.config.config import QConfig

__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "BiasCorrectionConfig",
    "CLEConfig",
    "GPTQConfig",
    "QConfig",
    "QuarotConfig",
    "SmoothQuantConfig",
    "_algo_flag",
]
