"""The words that ``QConfig`` takes."""

from __future__ import annotations

import dataclasses

from lowbit.quark.onnx.quantization.config.config import QConfig
from lowbit.quark.onnx.quantization.config.custom_config import (
    DEFAULT_MICROEXPONENTS_PARAMS,
    DEFAULT_MICROSCALING_PARAMS,
)
from lowbit.quark.translate.options import OPTIONS

QCONFIG_ALL_PARAMS = {*(field.name for field in dataclasses.fields(QConfig)), *OPTIONS}

__all__ = ["DEFAULT_MICROEXPONENTS_PARAMS", "DEFAULT_MICROSCALING_PARAMS", "QCONFIG_ALL_PARAMS"]
