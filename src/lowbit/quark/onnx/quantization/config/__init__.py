"""Configurations and presets by Quark's names."""

from lowbit.quark.onnx.quantization.config.config import Config, QConfig, QuantizationConfig
from lowbit.quark.onnx.quantization.config.custom_config import (
    DefaultConfigMapping,
    get_default_config,
    get_default_config_mapping,
)

DEFAULT_CONFIG_MAPPING = DefaultConfigMapping
"""The name of some versions before 0.13."""

__all__ = [
    "DEFAULT_CONFIG_MAPPING",
    "Config",
    "DefaultConfigMapping",
    "QConfig",
    "QuantizationConfig",
    "get_default_config",
    "get_default_config_mapping",
]
