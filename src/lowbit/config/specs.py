"""How a tensor is quantized, and which nodes that holds for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from lowbit.config.methods import Method, MinMax, Percentile
from lowbit.errors import ConfigError
from lowbit.numerics.blocks import Element, Rounding
from lowbit.numerics.float16 import FloatFormat
from lowbit.numerics.formats import IntegerFormat


class IntegerSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="tensor"
):
    """How one tensor is quantized: format, kind of scale, and how its range is found.

    ``group``: so many weights of each output of a MatMul or Gemm have a scale of their own, and
    other layers one a channel. That is blocked quantization, in ONNX from operator set 21 on.
    """

    format: IntegerFormat
    symmetric: bool = True
    per_channel: bool = False
    group: int | None = None
    power_of_two: bool = False
    reduce_range: bool = False
    method: Method = MinMax()

    def __post_init__(self) -> None:
        if self.group is not None and self.group < 2:
            raise ConfigError(f"group is {self.group}; at least 2 weights share a scale")
        if self.group is not None and self.power_of_two:
            raise ConfigError("weights in groups have float scales, not powers of two")

    def describe(self) -> str:
        """Return a few words for tables: ``int8 sym pow2 mse``."""
        words = [self.format.value, "sym" if self.symmetric else "asym"]
        words += ["pow2"] if self.power_of_two else []
        words += ["per-channel"] if self.per_channel and self.group is None else []
        words += [] if self.group is None else [f"groups of {self.group}"]
        words += ["7-bit"] if self.reduce_range else []
        return " ".join([*words, str(type(self.method).__struct_config__.tag)])


class FloatSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="float"):
    """A tensor in a 16-bit float format, weights and activations alike.

    ``scaled`` divides by a scale first, found by ``method`` (which needs calibration for
    activations), so that what would overflow does not. ``saturate`` clips activations at the
    largest finite value instead of letting them become infinite; constants never do.
    """

    format: FloatFormat
    scaled: bool = False
    saturate: bool = False
    method: MinMax | Percentile = MinMax()

    def describe(self) -> str:
        """Return a few words for tables: ``bfloat16 scaled minmax``."""
        words = [self.format.value]
        words += ["scaled", str(type(self.method).__struct_config__.tag)] if self.scaled else []
        words += ["saturating"] if self.saturate else []
        return " ".join(words)


class BfpSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="bfp"):
    """Block floating point: ``block`` numbers share an 8-bit exponent, each has ``bits`` - 8 more.

    With ``pairs`` each two neighbours have a one-bit exponent of their own (MX4, MX6, MX9).
    """

    bits: int = 16
    block: int = 8
    pairs: bool = False
    rounding: Rounding = Rounding.EVEN

    def describe(self) -> str:
        """Return a few words for tables: ``bfp16 blocks of 8``."""
        name = f"mx{self.bits - 7}" if self.pairs else f"bfp{self.bits}"
        return f"{name} blocks of {self.block}"


class MxSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mx"):
    """Elements of a small format, ``block`` of which share a power-of-two scale."""

    element: Element
    block: int = 32
    rounding: Rounding = Rounding.EVEN

    def describe(self) -> str:
        """Return a few words for tables: ``mxfp8_e4m3 blocks of 32``."""
        return f"mx{self.element.value} blocks of {self.block}"


BlockSpec: TypeAlias = BfpSpec | MxSpec
Spec: TypeAlias = IntegerSpec | FloatSpec | BfpSpec | MxSpec
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


def describe_format(spec: Spec) -> str:
    """Return the name of the spec's format, without the details."""
    if isinstance(spec, (IntegerSpec, FloatSpec)):
        return str(spec.format.value)
    return spec.describe().split()[0]


class ProductBias(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="product"
):
    """A bias in the accumulator's own scale, input scale times weight scale.

    ``repair`` enlarges the weight scale where the bias would not fit; otherwise it saturates.
    ``truncate_realigned`` rounds towards zero when an aligned input scale moves the bias scale,
    as AMD Quark does.
    """

    format: IntegerFormat = IntegerFormat.INT32
    repair: bool = True
    truncate_realigned: bool = False


IntegerBias: TypeAlias = ProductBias | IntegerSpec
BiasSpec: TypeAlias = ProductBias | IntegerSpec | FloatSpec | BfpSpec | MxSpec


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for the nodes it matches; of several matching rules the last one wins.

    A node matches when all given fields do. ``name`` is a glob (``*``, ``?``, ``[...]``) on node
    names or output tensor names, or a regular expression after ``re:``. ``start`` and ``end`` name
    the first and last nodes of a subgraph. Fields of the scheme left out keep the former value.
    """

    op_type: str | None = None
    name: str | None = None
    start: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    exclude: bool = False
    activation: Spec | None = None
    weight: Spec | None = None
    bias: BiasSpec | None = None


class TensorOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tensor gets instead of what its operators ask for.

    ``range`` fixes the range whatever the data says; ``keep`` as float leaves the tensor alone.
    An ``optional`` one is passed over where the tensor is not quantized anyway.
    """

    tensor: str
    keep: Literal["float"] | None = None
    spec: Spec | None = None
    range: tuple[float, float] | None = None
    optional: bool = False


class Requantization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes that read a tensor through a second pair, under a second name.

    The second name may have a spec of its own (``TensorOverride``), or gets that of its readers.
    ``before``: the new name is that of what is written, as an output of the graph must keep its own.
    """

    tensor: str
    readers: tuple[str, ...]
    name: str
    before: bool = False
