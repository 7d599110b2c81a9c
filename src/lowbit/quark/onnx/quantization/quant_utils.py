"""Quark's names of quantized types, formats and calibration methods beyond onnxruntime's."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, TypeAlias

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

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on

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


class _Named(enum.Enum):
    """A kind that is written as its name."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, t: str) -> Self:
        """Return the member of that name."""
        try:
            return cls[t]
        except KeyError:
            known = ", ".join(cls.__members__)
            raise QuarkConfigError(f"no {cls.__name__} is called {t!r} (known: {known})") from None


class _QuantType(_Named):
    @property
    def tensor_type(self) -> int:
        """The element type in an ONNX file; block formats have none."""
        kind: int = getattr(TensorProto, self.name[1:].upper(), TensorProto.UNDEFINED)
        return kind


class ExtendedQuantType(_QuantType):
    """The quantized type of a tensor. The 4-bit types are lowbit's addition."""

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


class VitisQuantType(_QuantType):
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


class ExtendedQuantFormat(_Named):
    """How quantization is written into the graph."""

    QOperator = 0
    QDQ = 1


class VitisQuantFormat(_Named):
    """The older name of ``ExtendedQuantFormat``."""

    QDQ = 2
    FixNeuron = 3
    BFPFixNeuron = 4
    MXFixNeuron = 5


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
