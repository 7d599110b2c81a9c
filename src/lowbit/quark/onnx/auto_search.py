"""The older name of ``quark.onnx.quantization.auto_search``."""

from lowbit.quark.onnx.quantization.auto_search import (
    AutoSearch,
    AutoSearchConfig,
    AutoSearchPro,
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
