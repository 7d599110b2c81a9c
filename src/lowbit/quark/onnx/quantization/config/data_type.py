"""Data types of specs. Each is a class that is used itself, never an instance of it."""

from __future__ import annotations

from typing import ClassVar

from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError
from lowbit.quark.onnx.quantization.quant_utils import AnyQuantType, ExtendedQuantType, QuantType


class DataType:
    """Base of all data types; ``map_onnx_format`` is the quantized type it stands for."""

    map_onnx_format: ClassVar[AnyQuantType]


class Int4(DataType):
    """Signed, 4 bits."""

    map_onnx_format = ExtendedQuantType.QInt4


class UInt4(DataType):
    """Unsigned, 4 bits."""

    map_onnx_format = ExtendedQuantType.QUInt4


class Int8(DataType):
    """Signed, 8 bits."""

    map_onnx_format = QuantType.QInt8


class UInt8(DataType):
    """Unsigned, 8 bits."""

    map_onnx_format = QuantType.QUInt8


class Int16(DataType):
    """Signed, 16 bits."""

    map_onnx_format = ExtendedQuantType.QInt16


class UInt16(DataType):
    """Unsigned, 16 bits."""

    map_onnx_format = ExtendedQuantType.QUInt16


class Int32(DataType):
    """Signed, 32 bits."""

    map_onnx_format = ExtendedQuantType.QInt32


class UInt32(DataType):
    """Unsigned, 32 bits."""

    map_onnx_format = ExtendedQuantType.QUInt32


class Float16(DataType):
    """IEEE half precision."""

    map_onnx_format = ExtendedQuantType.QFloat16


class BFloat16(DataType):
    """The upper half of a float32."""

    map_onnx_format = ExtendedQuantType.QBFloat16


class BFP16(DataType):
    """8-bit mantissas with one exponent for eight of them."""

    map_onnx_format = ExtendedQuantType.QBFP


class MX4(DataType):
    """Block floating point with micro-exponents, 4 bits."""

    map_onnx_format = ExtendedQuantType.QBFP


class MX6(DataType):
    """Block floating point with micro-exponents, 6 bits."""

    map_onnx_format = ExtendedQuantType.QBFP


class MX9(DataType):
    """Block floating point with micro-exponents, 9 bits."""

    map_onnx_format = ExtendedQuantType.QBFP


class MXFP4E2M1(DataType):
    """Microscaling with 4-bit floats."""

    map_onnx_format = ExtendedQuantType.QMX


class MXFP6E3M2(DataType):
    """Microscaling with 6-bit floats, 3 bits of exponent."""

    map_onnx_format = ExtendedQuantType.QMX


class MXFP6E2M3(DataType):
    """Microscaling with 6-bit floats, 2 bits of exponent."""

    map_onnx_format = ExtendedQuantType.QMX


class MXFP8E5M2(DataType):
    """Microscaling with 8-bit floats, 5 bits of exponent."""

    map_onnx_format = ExtendedQuantType.QMX


class MXFP8E4M3(DataType):
    """Microscaling with 8-bit floats, 4 bits of exponent."""

    map_onnx_format = ExtendedQuantType.QMX


class MXInt8(DataType):
    """Microscaling with 8-bit integers."""

    map_onnx_format = ExtendedQuantType.QMX


_ALL: tuple[type[DataType], ...] = (
    Int4,
    UInt4,
    Int8,
    UInt8,
    Int16,
    UInt16,
    Int32,
    UInt32,
    Float16,
    BFloat16,
    BFP16,
    MX4,
    MX6,
    MX9,
    MXFP4E2M1,
    MXFP6E3M2,
    MXFP6E2M3,
    MXFP8E5M2,
    MXFP8E4M3,
    MXInt8,
)

_BY_NAME = {kind.__name__: kind for kind in _ALL}


def parse_data_type(name: str) -> type[DataType]:
    """Return the data type of that name."""
    if name not in _BY_NAME:
        raise QuarkConfigError(f"no data type is called {name!r}{did_you_mean(name, _BY_NAME)}")
    return _BY_NAME[name]
