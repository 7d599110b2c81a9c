"""Operators that quantize, dequantize or compute in integers, those that AMD has names of its own for included."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

AMD_DOMAIN = "com.amd.quark"
OLDER_AMD_DOMAIN = "com.vai.quantize"
"""The domain before it, in which the same operators have other names."""

OLDER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "VitisQuantizeLinear": "ExtendedQuantizeLinear",
        "VitisDequantizeLinear": "ExtendedDequantizeLinear",
        "VitisInstanceNormalization": "ExtendedInstanceNormalization",
        "VitisLSTM": "ExtendedLSTM",
        "BFPFixNeuron": "BFPQuantizeDequantize",
        "MXFixNeuron": "MXQuantizeDequantize",
    }
)
"""By the name in the older domain: AMD's name today."""


def _with_older(*names: str) -> frozenset[str]:
    return frozenset((*names, *(older for older, name in OLDER_NAMES.items() if name in names)))


QUANTIZE = _with_older("QuantizeLinear", "ExtendedQuantizeLinear")
DEQUANTIZE = _with_older("DequantizeLinear", "ExtendedDequantizeLinear")
ROUND_BLOCKS = _with_older("BFPQuantizeDequantize", "MXQuantizeDequantize")
"""Operators that do both for block formats: floats come out."""

CONVERTERS = QUANTIZE | DEQUANTIZE | ROUND_BLOCKS
"""Operators that quantize, dequantize, or do both."""

QUANTIZED = CONVERTERS | frozenset(
    "DynamicQuantizeLinear QLinearConv QLinearMatMul ConvInteger MatMulInteger QGemm QLinearAdd "
    "MatMulNBits".split()
)
"""Operators that only a quantized model has."""
