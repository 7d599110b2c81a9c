"""Quark's names of quantized types, formats and calibration methods beyond onnxruntime's."""

from __future__ import annotations

import enum
import re
from typing import Any, TypeAlias, TypeVar

from onnx import TensorProto
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType

from lowbit.quark.errors import NotSupportedError, QuarkConfigError
from lowbit.quark.onnx.operators import (
    _COP_BFP_OP_NAME,
    _COP_DEQUANT_OP_NAME,
    _COP_DOMAIN,
    _COP_IN_OP_NAME,
    _COP_LSTM_OP_NAME,
    _COP_MX_OP_NAME,
    _COP_QUANT_OP_NAME,
    _COP_VERSION,
)

_E = TypeVar("_E", bound=enum.Enum)

COP_DOMAIN, COP_VERSION = _COP_DOMAIN, _COP_VERSION
COP_QUANT_OP_NAME, COP_DEQUANT_OP_NAME = _COP_QUANT_OP_NAME, _COP_DEQUANT_OP_NAME
COP_IN_OP_NAME, COP_LSTM_OP_NAME = _COP_IN_OP_NAME, _COP_LSTM_OP_NAME
COP_BFP_OP_NAME, COP_MX_OP_NAME = _COP_BFP_OP_NAME, _COP_MX_OP_NAME
QUANT_OP_NAME, DEQUANT_OP_NAME = "QuantizeLinear", "DequantizeLinear"
QUANT_OP_TYPES = [QUANT_OP_NAME, COP_QUANT_OP_NAME]
DEQUANT_OP_TYPES = [DEQUANT_OP_NAME, COP_DEQUANT_OP_NAME]
FN_OP_TYPES = [COP_BFP_OP_NAME, COP_MX_OP_NAME]


def is_version_below(lib: Any, target: str) -> bool:
    """Whether a module's version is lower than another."""
    here, wanted = (
        tuple(int(number) for number in re.findall(r"\d+", text)[:3])
        for text in (lib.__version__, target)
    )
    return here < wanted


class PowerOfTwoMethod(enum.Enum):
    """Methods that give power-of-two scales."""

    NonOverflow = 0
    MinMSE = 1


class Int16Method(enum.Enum):
    """Methods whose scales are 16-bit integers over a power of two."""

    MinMax = 0


class LayerWiseMethod(enum.Enum):
    """Methods that choose among percentiles for each tensor."""

    LayerWisePercentile = 0


class ExtendedCalibrationMethod(enum.Enum):
    """Methods for weights with float scales."""

    MinMSE = 0


class ExtendedQuantType(enum.Enum):
    """What a tensor is quantized to. The 4-bit types are lowbit's addition."""

    QInt8 = 1
    QUInt8 = 2
    QInt16 = 3
    QUInt16 = 4
    QInt32 = 5
    QUInt32 = 6
    QFloat16 = 7
    QBFloat16 = 8
    QBFP = 9
    QMX = 10
    QInt4 = 11
    QUInt4 = 12

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(t: str) -> ExtendedQuantType:
        """Return the type of that name."""
        return _member(ExtendedQuantType, t)

    @property
    def tensor_type(self) -> int:
        """The element type in an ONNX file."""
        return _TENSOR_TYPES[self.name]


class VitisQuantType(enum.Enum):
    """The older name of ``ExtendedQuantType``."""

    QInt8 = 1
    QUInt8 = 2
    QInt16 = 3
    QUInt16 = 4
    QInt32 = 5
    QUInt32 = 6
    QFloat16 = 7
    QBFloat16 = 8
    QBFP = 9
    QMX = 10

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(t: str) -> VitisQuantType:
        """Return the type of that name."""
        return _member(VitisQuantType, t)

    @property
    def tensor_type(self) -> int:
        """The element type in an ONNX file."""
        return _TENSOR_TYPES[self.name]


class ExtendedQuantFormat(enum.Enum):
    """How quantization is written into the graph."""

    QOperator = 0
    QDQ = 1

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(t: str) -> ExtendedQuantFormat:
        """Return the format of that name."""
        return _member(ExtendedQuantFormat, t)


class VitisQuantFormat(enum.Enum):
    """The older name of ``ExtendedQuantFormat``."""

    QDQ = 2
    FixNeuron = 3
    BFPFixNeuron = 4
    MXFixNeuron = 5

    def __str__(self) -> str:
        return self.name

    @staticmethod
    def from_string(t: str) -> VitisQuantFormat:
        """Return the format of that name."""
        return _member(VitisQuantFormat, t)


class VitisExtendedQuantizer:
    """Quark's inner quantizer of earlier versions, which 0.13 promises by name only."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        del args, kwargs
        raise NotSupportedError(
            "VitisExtendedQuantizer is not supported: quantize with ModelQuantizer or "
            "quantize_static"
        )


AnyQuantType: TypeAlias = QuantType | ExtendedQuantType | VitisQuantType
AnyQuantFormat: TypeAlias = QuantFormat | ExtendedQuantFormat | VitisQuantFormat

_TENSOR_TYPES: dict[str, int] = {
    "QInt8": TensorProto.INT8,
    "QUInt8": TensorProto.UINT8,
    "QInt16": TensorProto.INT16,
    "QUInt16": TensorProto.UINT16,
    "QInt32": TensorProto.INT32,
    "QUInt32": TensorProto.UINT32,
    "QFloat16": TensorProto.FLOAT16,
    "QBFloat16": TensorProto.BFLOAT16,
    "QBFP": TensorProto.UNDEFINED,
    "QMX": TensorProto.UNDEFINED,
    "QInt4": TensorProto.INT4,
    "QUInt4": TensorProto.UINT4,
}


def _member(kind: type[_E], name: str) -> _E:
    try:
        return kind[name]
    except KeyError:
        known = ", ".join(kind.__members__)
        raise QuarkConfigError(f"no {kind.__name__} is called {name!r} (known: {known})") from None


__all__ = [
    "COP_BFP_OP_NAME",
    "COP_DEQUANT_OP_NAME",
    "COP_DOMAIN",
    "COP_IN_OP_NAME",
    "COP_LSTM_OP_NAME",
    "COP_MX_OP_NAME",
    "COP_QUANT_OP_NAME",
    "COP_VERSION",
    "DEQUANT_OP_NAME",
    "DEQUANT_OP_TYPES",
    "FN_OP_TYPES",
    "QUANT_OP_NAME",
    "QUANT_OP_TYPES",
    "AnyQuantFormat",
    "AnyQuantType",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "Int16Method",
    "LayerWiseMethod",
    "PowerOfTwoMethod",
    "QuantFormat",
    "QuantType",
    "VitisExtendedQuantizer",
    "VitisQuantFormat",
    "VitisQuantType",
    "is_version_below",
]
