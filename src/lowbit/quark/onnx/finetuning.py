"""The older home of fast finetuning, as a call on its own; here it is part of a run."""

from __future__ import annotations

from typing import Any, NoReturn

from lowbit.quark.errors import NotSupportedError
from lowbit.quark.onnx.quantization.config.algorithm import AdaQuantConfig, AdaRoundConfig

__all__ = ["AdaQuantConfig", "AdaRoundConfig", "fast_finetune"]


def fast_finetune(*args: Any, **kwargs: Any) -> NoReturn:
    """Raise: weights are refined before the model is written, not afterwards."""
    del args, kwargs
    raise NotSupportedError(
        "fast_finetune on a quantized model is not supported: give AdaRoundConfig or "
        "AdaQuantConfig to the configuration that quantizes it"
    )
