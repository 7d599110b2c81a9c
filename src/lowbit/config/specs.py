"""How a tensor is quantized, and which nodes that holds for."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from lowbit.config.methods import Method, MinMax
from lowbit.numerics.formats import Format


class TensorSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="tensor"
):
    """How one tensor is quantized: format, kind of scale, and how its range is found."""

    format: Format
    symmetric: bool = True
    per_channel: bool = False
    power_of_two: bool = False
    reduce_range: bool = False
    method: Method = MinMax()

    def describe(self) -> str:
        """Return a few words for tables: ``int8 sym pow2 mse``."""
        words = [self.format.value, "sym" if self.symmetric else "asym"]
        words += ["pow2"] if self.power_of_two else []
        words += ["per-channel"] if self.per_channel else []
        words += ["7-bit"] if self.reduce_range else []
        return " ".join([*words, str(type(self.method).__struct_config__.tag)])


class ProductBias(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="product"
):
    """A bias in the accumulator's own scale, input scale times weight scale.

    ``repair`` enlarges the weight scale where the bias would not fit; otherwise it saturates.
    ``truncate_realigned`` rounds towards zero when an aligned input scale moves the bias scale,
    as AMD Quark does.
    """

    format: Format = Format.INT32
    repair: bool = True
    truncate_realigned: bool = False


BiasSpec: TypeAlias = ProductBias | TensorSpec


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
    activation: TensorSpec | None = None
    weight: TensorSpec | None = None
    bias: BiasSpec | None = None


class TensorOverride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tensor gets instead of what its operators ask for.

    ``range`` fixes the range whatever the data says; ``keep`` as float leaves the tensor alone.
    An ``optional`` one is passed over where the tensor is not quantized anyway.
    """

    tensor: str
    keep: Literal["float"] | None = None
    spec: TensorSpec | None = None
    range: tuple[float, float] | None = None
    optional: bool = False
