"""The older name of ``quark.onnx.quantization.quantize``."""

from lowbit.quark.onnx.quantization.api import ModelQuantizer
from lowbit.quark.onnx.quantization.quantize import quantize_dynamic, quantize_static

__all__ = ["ModelQuantizer", "quantize_dynamic", "quantize_static"]
