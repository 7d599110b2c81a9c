"""How a tensor and how a layer is quantized, in Quark's newer API."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from lowbit.errors import did_you_mean
from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.onnx.quantization.config import data_type as types
from lowbit.quark.onnx.quantization.config.data_type import DataType, parse_data_type


class CalibMethod(enum.Enum):
    """How a range is found."""

    MinMax = 0
    MinMSE = 1
    Percentile = 2
    Entropy = 3
    LayerwisePercentile = 4
    Distribution = 5


class ScaleType(enum.Enum):
    """The number type of scales."""

    Float32 = 0
    PowerOf2 = 1
    Int16 = 2


class QuantGranularity(enum.Enum):
    """The granularity of scales."""

    Tensor = 0
    Channel = 1
    Group = 2


@dataclasses.dataclass
class QTensorConfig:
    """How one tensor is quantized."""

    symmetric: bool
    scale_type: ScaleType
    calibration_method: CalibMethod
    quant_granularity: QuantGranularity
    data_type: type[DataType]

    def set_symmetric(self, symmetric: bool) -> None:  # noqa: FBT001
        """Set whether the range is the same on both sides of zero."""
        self.symmetric = symmetric

    def set_scale_type(self, scale_type: ScaleType) -> None:
        """Set the kind of scale."""
        self.scale_type = scale_type

    def set_calibration_method(self, calibration_method: CalibMethod) -> None:
        """Set how the range is found."""
        self.calibration_method = calibration_method

    def set_quant_granularity(self, quant_granularity: QuantGranularity) -> None:
        """Set what one scale holds for."""
        self.quant_granularity = quant_granularity

    def set_data_type(self, data_type: type[DataType]) -> None:
        """Set the data type."""
        self.data_type = data_type

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as plain values."""
        return {
            "symmetric": self.symmetric,
            "scale_type": str(self.scale_type),
            "calibration_method": str(self.calibration_method),
            "quant_granularity": str(self.quant_granularity),
            "data_type": self.data_type.__name__,
        }

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> QTensorConfig:
        """Return the spec that ``to_dict`` wrote."""
        known = [field.name for field in dataclasses.fields(QTensorConfig)]
        for name in d:
            if name not in known:
                raise QuarkConfigError(f"a spec has no {name!r}{did_you_mean(name, known)}")
        missing = [name for name in known if name not in d]
        if missing:
            raise QuarkConfigError(f"the spec lacks {missing[0]!r} (it needs {', '.join(known)})")
        return QTensorConfig(
            symmetric=d["symmetric"],
            scale_type=_parse(ScaleType, d["scale_type"]),
            calibration_method=_parse(CalibMethod, d["calibration_method"]),
            quant_granularity=_parse(QuantGranularity, d["quant_granularity"]),
            data_type=parse_data_type(d["data_type"]),
        )


def _parse(kind: type[enum.Enum], text: Any) -> Any:
    """Return the member that ``Kind.Member`` or ``Member`` names."""
    name = str(text).rpartition(".")[2]
    if name not in kind.__members__:
        near = did_you_mean(name, kind.__members__)
        raise QuarkConfigError(f"{text!r} is no {kind.__name__}{near}")
    return kind[name]


@dataclasses.dataclass
class _Usual(QTensorConfig):
    """One float scale for a tensor and its whole range; each spec says what is otherwise."""

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.MinMax
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: type[DataType] = DataType


@dataclasses.dataclass
class Int4Spec(_Usual):
    """4-bit integers around zero; lowbit's addition."""

    data_type: type[DataType] = types.Int4


@dataclasses.dataclass
class UInt4Spec(_Usual):
    """4-bit integers with a zero point; lowbit's addition."""

    symmetric: bool = False
    data_type: type[DataType] = types.UInt4


@dataclasses.dataclass
class Int8Spec(_Usual):
    """8-bit integers around zero."""

    calibration_method: CalibMethod = CalibMethod.Percentile
    data_type: type[DataType] = types.Int8


@dataclasses.dataclass
class UInt8Spec(_Usual):
    """8-bit integers with a zero point."""

    symmetric: bool = False
    calibration_method: CalibMethod = CalibMethod.Percentile
    data_type: type[DataType] = types.UInt8


@dataclasses.dataclass
class XInt8Spec(Int8Spec):
    """8-bit integers with power-of-two scales, for NPUs."""

    scale_type: ScaleType = ScaleType.PowerOf2
    calibration_method: CalibMethod = CalibMethod.MinMSE


@dataclasses.dataclass
class Int16Spec(_Usual):
    """16-bit integers around zero."""

    calibration_method: CalibMethod = CalibMethod.Percentile
    data_type: type[DataType] = types.Int16


@dataclasses.dataclass
class UInt16Spec(_Usual):
    """16-bit integers with a zero point."""

    symmetric: bool = False
    calibration_method: CalibMethod = CalibMethod.Percentile
    data_type: type[DataType] = types.UInt16


@dataclasses.dataclass
class Int32Spec(_Usual):
    """32-bit integers around zero."""

    calibration_method: CalibMethod = CalibMethod.Percentile
    data_type: type[DataType] = types.Int32


@dataclasses.dataclass
class UInt32Spec(_Usual):
    """32-bit integers with a zero point."""

    symmetric: bool = False
    calibration_method: CalibMethod = CalibMethod.Percentile
    data_type: type[DataType] = types.UInt32


@dataclasses.dataclass
class Float16Spec(_Usual):
    """Half precision."""

    data_type: type[DataType] = types.Float16


@dataclasses.dataclass
class BFloat16Spec(_Usual):
    """The upper half of a float32."""

    data_type: type[DataType] = types.BFloat16


@dataclasses.dataclass
class BFP16Spec(_Usual):
    """Block floating point."""

    data_type: type[DataType] = types.BFP16


@dataclasses.dataclass
class MX4Spec(_Usual):
    """Block floating point with micro-exponents, 4 bits."""

    data_type: type[DataType] = types.MX4


@dataclasses.dataclass
class MX6Spec(_Usual):
    """Block floating point with micro-exponents, 6 bits."""

    data_type: type[DataType] = types.MX6


@dataclasses.dataclass
class MX9Spec(_Usual):
    """Block floating point with micro-exponents, 9 bits."""

    data_type: type[DataType] = types.MX9


@dataclasses.dataclass
class MXFP4E2M1Spec(_Usual):
    """Microscaling, 4-bit floats."""

    data_type: type[DataType] = types.MXFP4E2M1


@dataclasses.dataclass
class MXFP6E3M2Spec(_Usual):
    """Microscaling, 6-bit floats."""

    data_type: type[DataType] = types.MXFP6E3M2


@dataclasses.dataclass
class MXFP6E2M3Spec(_Usual):
    """Microscaling, 6-bit floats."""

    data_type: type[DataType] = types.MXFP6E2M3


@dataclasses.dataclass
class MXFP8E5M2Spec(_Usual):
    """Microscaling, 8-bit floats."""

    data_type: type[DataType] = types.MXFP8E5M2


@dataclasses.dataclass
class MXFP8E4M3Spec(_Usual):
    """Microscaling, 8-bit floats."""

    data_type: type[DataType] = types.MXFP8E4M3


@dataclasses.dataclass
class MXInt8Spec(_Usual):
    """Microscaling, 8-bit integers."""

    data_type: type[DataType] = types.MXInt8


@dataclasses.dataclass(eq=False)
class QLayerConfig:
    """How the tensors of a layer are quantized. ``activation`` is an older name of the inputs'."""

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the parts that are given, as plain values."""
        parts = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: spec.to_dict() for name, spec in parts.items() if spec is not None}

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> QLayerConfig:
        """Return the configuration that ``to_dict`` wrote.

        Clients write the same spec under both names of the inputs'; Quark reads ``input_tensors``.
        """
        known = [field.name for field in dataclasses.fields(QLayerConfig)]
        for name in d:
            if name not in known:
                raise QuarkConfigError(f"a layer has no {name!r}{did_you_mean(name, known)}")
        parts = {name: part for name, part in d.items() if part is not None}
        if parts.get("input_tensors") is not None:
            older = parts.pop("activation", None)
            if older is not None and older != parts["input_tensors"]:
                say("a layer has both input_tensors and activation: activation is ignored")
        return QLayerConfig(**{name: QTensorConfig.from_dict(part) for name, part in parts.items()})

    def inputs(self) -> QTensorConfig | None:
        """Return the spec of the inputs, by whichever name it was given."""
        if self.activation is not None and self.input_tensors is not None:
            raise QuarkConfigError(
                "both activation and input_tensors are given; they mean the same, keep one"
            )
        return self.input_tensors if self.input_tensors is not None else self.activation
