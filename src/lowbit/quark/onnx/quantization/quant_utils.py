"""Quark's names of quantized types and formats."""

from __future__ import annotations

import enum
from typing import TypeAlias, TypeVar

from onnx import TensorProto
from onnxruntime.quantization.quant_utils import QuantFormat, QuantType

from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.calibration.methods import (
    ExtendedCalibrationMethod,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
)

_E = TypeVar("_E", bound=enum.Enum)

COP_DOMAIN = "com.amd.quark"
COP_VERSION = 1


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
    "COP_DOMAIN",
    "COP_VERSION",
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
    "VitisQuantFormat",
    "VitisQuantType",
]
