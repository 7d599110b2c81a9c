"""How tensors are quantized, and rules for which nodes that holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import msgspec

from lowbit.config.extensible import tag_of
from lowbit.config.methods import BY_NAME, FOR_WEIGHTS, Method, MinMax, Percentile
from lowbit.errors import ConfigError
from lowbit.numerics.blocks import Element, Rounding, round_bfp, round_mx
from lowbit.numerics.formats import FloatArray, FloatFormat, IntegerFormat

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on


class _Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The interface of every kind of spec; a new number format implements it in its own class."""

    is_integer: ClassVar[bool] = False
    is_block: ClassVar[bool] = False
    is_dynamic: ClassVar[bool] = False
    is_accumulator: ClassVar[bool] = False

    @property
    def format_name(self) -> str:
        """The name of the format, without the details."""
        return self.describe().split()[0]

    @property
    def calibration(self) -> Method | None:
        """The method that finds a scale from data, or ``None`` if there is no scale to find."""
        return None

    @property
    def largest_integer(self) -> int:
        """The largest integer of a format as fine as this one; block formats are as fine as int8."""
        return 127

    @property
    def is_symmetric(self) -> bool:
        """Whether what stands for zero lies in the middle."""
        return True

    @property
    def rounds_to_zero(self) -> bool:
        """Whether small numbers become zero."""
        return True

    @property
    def overflows_at(self) -> float | None:
        """The largest magnitude that an activation may have, where it is not scaled to fit."""
        return None

    @property
    def lowest_opset(self) -> int:
        """The operator set from which on ONNX can store it."""
        return 0

    def with_method(self, method: Method) -> Self:
        """Return the spec with its scale found by another method; ``ConfigError`` if it cannot be."""
        raise ConfigError(
            f"activations in {self.describe()} cannot be calibrated by {type(method).__name__}; "
            "16-bit floats that are scaled take minmax and percentile, other formats without "
            "integers take nothing"
        )

    def with_scales_per_channel(self) -> Self:
        """Return the spec with a scale for each channel, where the format has scales of weights."""
        return self

    def along(
        self, shape: Sequence[int], *, reduced: int | None, channel: int | None
    ) -> tuple[Self, int | None]:
        """Return the spec of a constant of that shape, and the axis its scales lie along if it has several.

        ``reduced`` is the axis that is summed over and may be cut into groups, ``channel`` that of
        outputs; ``None`` where there is none.
        """
        del shape, reduced, channel
        return self, None

    def describe(self) -> str:
        """Return a few words for tables."""
        raise NotImplementedError


class IntegerSpec(_Spec, frozen=True, kw_only=True, tag="integer"):
    """A tensor as integers: format, kind of scale, and how its range is found.

    ``group_size``: so many weights of each output of a MatMul or Gemm have a scale of their own, and
    other layers one per channel. That is blocked quantization, in ONNX from operator set 21 on.
    ``saturation_free``: weights are such that two products with 8-bit activations never exceed 16 bits, in
    which x86 processors without VNNI add them; ``None``: where the target has such kernels.
    """

    is_integer: ClassVar[bool] = True

    format: IntegerFormat
    symmetric: bool = True
    per_channel: bool = False
    group_size: int | None = None
    power_of_two: bool = False
    reduce_range: bool = False
    saturation_free: bool | None = None
    method: Method = MinMax()

    def __post_init__(self) -> None:
        if self.group_size is not None and self.group_size < 2:
            raise ConfigError(f"group_size is {self.group_size}; at least 2 weights share a scale")
        if self.group_size is not None and self.power_of_two:
            raise ConfigError("weights with a scale per group have float scales, not powers of two")

    @property
    def calibration(self) -> Method | None:
        """Every integer has a scale."""
        return self.method

    @property
    def largest_integer(self) -> int:
        """The largest integer of the symmetric format."""
        return int((1 << (self.format.bits - 1)) - 1)

    @property
    def is_symmetric(self) -> bool:
        """Whether the zero point is zero."""
        return self.symmetric

    def with_method(self, method: Method) -> Self:
        """Return the spec with another method: integers take any."""
        return msgspec.structs.replace(self, method=method)

    def with_scales_per_channel(self) -> Self:
        """Return the spec with a scale for each channel."""
        return msgspec.structs.replace(self, per_channel=True)

    def along(
        self, shape: Sequence[int], *, reduced: int | None, channel: int | None
    ) -> tuple[Self, int | None]:
        """Return the spec and the axis; where no group can be, or only one, scales are per channel."""
        spec = self
        if spec.group_size is not None:
            if reduced is not None and shape[reduced] > spec.group_size:
                return spec, reduced % len(shape)
            spec = msgspec.structs.replace(spec, group_size=None, per_channel=True)
        if spec.per_channel and channel is not None:
            return spec, channel % len(shape)
        return spec, None

    @property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest integer in use."""
        return self.format.limits(symmetric=self.symmetric, reduce_range=self.reduce_range)

    @property
    def lowest_opset(self) -> int:
        """4 bits and scales per group came with operator set 21."""
        return 21 if self.format.bits == 4 or self.group_size is not None else 0

    def describe(self) -> str:
        """Return a few words for tables: ``int8 sym pow2 mse``."""
        words = [self.format.value, "sym" if self.symmetric else "asym"]
        words += ["pow2"] if self.power_of_two else []
        words += ["per-channel"] if self.per_channel and self.group_size is None else []
        words += [] if self.group_size is None else [f"group size {self.group_size}"]
        words += ["7-bit"] if self.reduce_range else []
        words += ["saturation-free"] if self.saturation_free else []
        return " ".join([*words, tag_of(type(self.method))])


class DynamicSpec(_Spec, frozen=True, kw_only=True, tag="dynamic"):
    """An activation as uint8 whose scale and zero point are found when the model runs."""

    is_dynamic: ClassVar[bool] = True

    def describe(self) -> str:
        """Return a few words for tables: ``uint8 dynamic``."""
        return "uint8 dynamic"


class FloatSpec(_Spec, frozen=True, kw_only=True, tag="float"):
    """A tensor in a float format of 16 or 8 bits, weights and activations alike.

    ``scaled`` divides by a scale first, found by ``method`` (which needs calibration for
    activations), so that what would overflow does not. ``saturate`` clips activations at the
    largest finite value instead of letting them become infinite; constants never do.
    """

    format: FloatFormat
    scaled: bool = False
    saturate: bool = False
    method: Method = MinMax()

    def __post_init__(self) -> None:
        kind = type(self.method)
        known = {*BY_NAME.values(), *FOR_WEIGHTS.values()}
        if kind in known and kind not in (MinMax, Percentile):
            raise ConfigError(
                f"the scale of {self.format.value} cannot be found by {tag_of(kind)}; "
                "take minmax or percentile"
            )

    @property
    def calibration(self) -> Method | None:
        """The method, if there is a scale."""
        return self.method if self.scaled else None

    @property
    def rounds_to_zero(self) -> bool:
        """Whether small numbers become zero; bfloat16 has the exponents of float32."""
        return self.format is not FloatFormat.BFLOAT16

    def with_method(self, method: Method) -> Self:
        """Return the spec with another method, if it is scaled and the method gives a range."""
        if not self.scaled or not isinstance(method, (MinMax, Percentile)):
            return super().with_method(method)
        return msgspec.structs.replace(self, method=method)

    @property
    def overflows_at(self) -> float | None:
        """The largest finite value."""
        return None if self.scaled else self.format.largest

    @property
    def lowest_opset(self) -> int:
        """Onnxruntime takes 8-bit floats in QuantizeLinear from operator set 21 on."""
        return 21 if self.format.bits == 8 else 0

    def describe(self) -> str:
        """Return a few words for tables: ``bfloat16 scaled minmax``."""
        words = [self.format.value]
        words += ["scaled", tag_of(type(self.method))] if self.scaled else []
        words += ["saturating"] if self.saturate else []
        return " ".join(words)


class BfpSpec(_Spec, frozen=True, kw_only=True, tag="bfp"):
    """Block floating point: ``block`` numbers share an 8-bit exponent, each has ``bits`` - 8 more.

    With ``pairs`` each two neighbours have a one-bit exponent of their own (MX4, MX6, MX9).
    """

    is_block: ClassVar[bool] = True

    bits: int = 16
    block: int = 8
    pairs: bool = False
    rounding: Rounding = Rounding.EVEN

    @property
    def integers(self) -> tuple[int, int]:
        """The smallest and the largest integer that a number is, times the block's power of two."""
        high = 2 ** (self.bits - 9) - 1
        return -high, high

    def rounded(self, values: FloatArray, axis: int) -> FloatArray:
        """Return the values in this format."""
        return round_bfp(
            values,
            axis,
            bits=self.bits,
            block=self.block,
            pairs=self.pairs,
            rounding=self.rounding,
        )

    def describe(self) -> str:
        """Return a few words for tables: ``bfp16 blocks of 8``."""
        name = f"mx{self.bits - 7}" if self.pairs else f"bfp{self.bits}"
        return f"{name} blocks of {self.block}"


class MxSpec(_Spec, frozen=True, kw_only=True, tag="mx"):
    """Elements of a small format, ``block`` of which share a power-of-two scale."""

    is_block: ClassVar[bool] = True
    pairs: ClassVar[bool] = False

    element: Element
    block: int = 32
    rounding: Rounding = Rounding.EVEN

    @property
    def integers(self) -> tuple[int, int]:
        """The smallest and the largest integer, of integer elements."""
        return IntegerFormat.INT8.low, IntegerFormat.INT8.high

    def rounded(self, values: FloatArray, axis: int) -> FloatArray:
        """Return the values in this format."""
        return round_mx(
            values, axis, element=self.element, block=self.block, rounding=self.rounding
        )

    def describe(self) -> str:
        """Return a few words for tables: ``mxfp8_e4m3 blocks of 32``."""
        return f"mx{self.element.value} blocks of {self.block}"


BlockSpec: TypeAlias = BfpSpec | MxSpec
Spec: TypeAlias = IntegerSpec | DynamicSpec | FloatSpec | BfpSpec | MxSpec
"""How one tensor is quantized: to integers, to 16-bit floats, or to blocks."""


BLOCKS: Mapping[str, BfpSpec | MxSpec] = MappingProxyType(
    {
        "BFP16": BfpSpec(),
        "MX4": BfpSpec(bits=11, block=16, pairs=True),
        "MX6": BfpSpec(bits=13, block=16, pairs=True),
        "MX9": BfpSpec(bits=16, block=16, pairs=True),
        **{f"MX{e.value.upper().replace('_', '')}": MxSpec(element=e) for e in Element},
    }
)
"""The block formats, by the name of the preset that has nothing else."""


class AccumulatorBias(_Spec, frozen=True, kw_only=True, tag="accumulator"):
    """A bias in the accumulator's own scale, input scale times weight scale.

    ``repair`` enlarges the weight scale where the bias would not fit; otherwise it saturates.
    ``truncate_realigned`` rounds towards zero when an aligned input scale moves the bias scale.
    """

    is_integer: ClassVar[bool] = True
    is_accumulator: ClassVar[bool] = True

    format: IntegerFormat = IntegerFormat.INT32
    repair: bool = True
    truncate_realigned: bool = False

    def describe(self) -> str:
        """Return a few words for tables: ``int32 accumulator``."""
        return f"{self.format.value} accumulator"


IntegerBias: TypeAlias = AccumulatorBias | IntegerSpec
BiasSpec: TypeAlias = AccumulatorBias | Spec


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scheme for the nodes it matches; of several matching rules the last one wins.

    A node matches when all given fields do. ``name`` is a glob (``*``, ``?``, ``[...]``) on node
    names or output tensor names, or a regular expression after ``re:``. ``start`` and ``end`` name
    the first and last nodes of a subgraph; ``nodes`` are exact names. Fields of the scheme that are not
    given keep the former value. ``why`` is what the plan says of excluded nodes. An ``optional`` rule may
    match nothing.
    """

    op_type: str | None = None
    name: str | None = None
    nodes: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    exclude: bool = False
    activation: Spec | None = None
    weight: Spec | None = None
    bias: BiasSpec | None = None
    why: str = ""
    optional: bool = False


class TensorOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exception for one tensor, instead of what its operators ask for.

    ``range`` fixes the range whatever the data says; ``observe`` names another tensor whose range it
    has; ``keep`` as float leaves the tensor alone.
    An ``optional`` one is passed over where the tensor is not quantized anyway.
    """

    tensor: str
    keep: Literal["float"] | None = None
    spec: Spec | None = None
    range: tuple[float, float] | None = None
    observe: str | None = None
    optional: bool = False


class Requantization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that read a tensor through a requantization pair, under a second name.

    The second name may have a spec of its own (``TensorOverride``), or gets that of its consumers.
    ``before``: the new name is that of what is computed, as an output of the graph must keep its own.
    """

    tensor: str
    consumers: tuple[str, ...]
    name: str
    before: bool = False
