"""Automatic search over configurations, with Quark's names and search spaces."""

from lowbit.quark.onnx.quantization.auto_search.older import AutoSearch, AutoSearchConfig
from lowbit.quark.onnx.quantization.auto_search.pro import AutoSearchPro
from lowbit.quark.onnx.quantization.auto_search.spaces import (
    SearchSpace,
    generate_all_configs,
    get_auto_search_config,
)

__all__ = [
    "AutoSearch",
    "AutoSearchConfig",
    "AutoSearchPro",
    "SearchSpace",
    "generate_all_configs",
    "get_auto_search_config",
]
