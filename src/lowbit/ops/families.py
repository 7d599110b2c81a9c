"""Operators with something in common, by what that is: one home for each such fact.

Rows for single operators are in ``traits``, ``linear`` and ``activations``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

READ_SHAPES = frozenset(("Shape", "Size"))
"""What reads of a tensor how large it is, and none of its numbers."""

LAYOUT = frozenset("Identity Reshape Flatten Squeeze Unsqueeze Transpose Cast Dropout".split())
"""What changes how numbers lie, and not the numbers."""

SELECT = frozenset("NonMaxSuppression TopK ArgMax ArgMin NonZero Unique".split())
"""What picks some of its numbers, or their places."""

SIZED_BY_DATA = frozenset(
    "NonZero NonMaxSuppression Compress Unique If Loop Scan StringSplit".split()
)
"""What writes as many elements as the numbers say that it reads."""

DECODE_DETECTIONS = frozenset(("Exp", "NonMaxSuppression", "TopK", "GatherND", "ScatterND"))
"""What follows the last layers of a detector, and not those of a classifier."""

RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli".split()
)
"""What draws anew each time."""

STEPS = frozenset(("Floor", "Ceil", "Round", "Sign", "Mod"))
"""What writes floats, but steps of them."""

POLE_AT_ZERO = frozenset(("Log", "Reciprocal"))
"""What makes very large numbers of those near zero."""

SUMS = frozenset(("Add", "Sub", "Sum"))
SCALINGS = frozenset(("Mul", "Div"))
"""Element by element, with factors that may have any scale."""

PRODUCTS = frozenset(("MatMul", "Einsum", "FusedMatMul"))
"""What multiplies two tensors and sums over an axis."""

MEAN_POOLS = ("AveragePool", "GlobalAveragePool")
GATES = frozenset(("Sigmoid", "HardSigmoid"))
SOFTMAXES = frozenset(("Softmax", "LogSoftmax"))
PROBABILITIES = SOFTMAXES | {"Sigmoid"}
"""What turns scores into probabilities, number by number or along one axis."""

ATTENTION: Mapping[str, int | None] = MappingProxyType(
    {
        "Attention": 3,
        "com.microsoft::Attention": 5,
        "com.microsoft::DecoderMaskedMultiHeadAttention": 4,
        "com.microsoft::DecoderMaskedSelfAttention": 5,
        "com.microsoft::GroupQueryAttention": 10,
        "com.microsoft::LongformerAttention": 3,
        "com.microsoft::MultiHeadAttention": 5,
        "com.microsoft::PackedAttention": 5,
        "com.microsoft::PackedMultiHeadAttention": 6,
        "com.microsoft::PagedAttention": None,
        "com.microsoft::SparseAttention": None,
    }
)
"""Attention in one operator: which input is added to its scores or masks them, if one is."""

MASKING: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"Add": (0, 1), "Sub": (0, 1), "Mul": (0, 1), "Div": (0, 1), "Where": (1, 2), "Min": (0, 1)}
)
"""What puts a mask on scores, with its data inputs."""

MASK_OFFSETS = frozenset(("Add", "Sub", "Where"))
"""Those in which a mask's large numbers stand beside scores or replace them."""

MASK_STEPS = frozenset((*MASKING, "Max", "Neg", "Cast", "Identity", "Clip", "Trilu", "Dropout"))
"""What a mask is made of and passes through, data movement aside."""


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
    def subtracts_mean(self) -> bool:
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

NORMALIZE_LAST_AXES = frozenset((*LAYER_NORMS, "EmbedLayerNormalization"))
"""What normalizes the last axes, also where its inputs are not known one by one."""


def layer_norm(node: ir.Node) -> LayerNorm | None:
    """Return what is known of a normalization in one node."""
    return LAYER_NORMS.get(node.op_type)
