"""Operators that several stages treat alike: normalizations, sums, softmaxes, readers of shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

READ_SHAPES = frozenset(("Shape", "Size"))
"""What reads of a tensor how large it is, and none of its numbers."""

SOFTMAXES = frozenset(("Softmax", "LogSoftmax"))
SUMS = frozenset(("Add", "Sub", "Sum"))
MEAN_POOLS = ("AveragePool", "GlobalAveragePool")

MASK_INPUTS: Mapping[str, int] = MappingProxyType(
    {
        "Attention": 3,
        "com.microsoft::Attention": 5,
        "com.microsoft::MultiHeadAttention": 5,
        "com.microsoft::DecoderMaskedMultiHeadAttention": 4,
        "com.microsoft::GroupQueryAttention": 10,
    }
)
"""Attention in one operator: which input is its mask or bias."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerNorm:
    """A normalization of the last axes in one node: its inputs by index.

    Attributes:
        factor: The constant that channels are multiplied by.
        offset: The constant added to them; ``None``: it does not take off the mean either.
        sources: How many inputs, from the first on, are added before they are normalized.
        bias: A constant that is added before as well.
    """

    factor: int = 1
    offset: int | None = None
    sources: int = 1
    bias: int | None = None

    @property
    def takes_off_mean(self) -> bool:
        """Whether the mean is taken off, rather than only the size divided by."""
        return self.offset is not None


LAYER_NORMS: Mapping[str, LayerNorm] = MappingProxyType(
    {
        "LayerNormalization": LayerNorm(offset=2),
        "RMSNormalization": LayerNorm(),
        "SimplifiedLayerNormalization": LayerNorm(),
        "SkipLayerNormalization": LayerNorm(factor=2, offset=3, sources=2, bias=4),
        "SkipSimplifiedLayerNormalization": LayerNorm(factor=2, sources=2, bias=3),
    }
)


def layer_norm(node: ir.Node) -> LayerNorm | None:
    """Return what is known of a normalization in one node."""
    return LAYER_NORMS.get(node.op_type)
