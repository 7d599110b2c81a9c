"""Operators with something in common, by what that is: one home for each such fact.

Rows for single operators are in ``traits``, ``linear`` and ``activations``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

READ_SHAPES = frozenset(("Shape", "Size"))
"""Operators that read the size of a tensor, and none of its values."""

LAYOUT = frozenset("Identity Reshape Flatten Squeeze Unsqueeze Transpose Cast Dropout".split())
"""Operators that change the layout, not the values."""

SELECT = frozenset("NonMaxSuppression TopK ArgMax ArgMin NonZero Unique".split())
"""Operators that select values of their input, or the positions of these."""

SIZED_BY_DATA = frozenset(
    "NonZero NonMaxSuppression Compress Unique If Loop Scan StringSplit".split()
)
"""Operators whose output size depends on the values of their input."""

DECODE_DETECTIONS = frozenset(("Exp", "NonMaxSuppression", "TopK", "GatherND", "ScatterND"))
"""Operators found after the last layers of detectors, and not of classifiers."""

RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli".split()
)
"""Operators with random outputs."""

STEPS = frozenset(("Floor", "Ceil", "Round", "Sign", "Mod"))
"""Operators that write floats with discrete values."""

POLE_AT_ZERO = frozenset(("Log", "Reciprocal"))
"""Operators with a pole at zero."""

SUMS = frozenset(("Add", "Sub", "Sum"))
SCALINGS = frozenset(("Mul", "Div"))
"""Element by element, with factors that may have any scale."""

BOUNDS = frozenset(("Clip", "Max", "Min", "Relu"))
"""Operators that bound what they read."""

PRODUCTS = frozenset(("MatMul", "Einsum", "FusedMatMul"))
"""Operators that multiply two tensors and sum over an axis."""

MEAN_POOLS = ("AveragePool", "GlobalAveragePool")
GATES = frozenset(("Sigmoid", "HardSigmoid"))
SOFTMAXES = frozenset(("Softmax", "LogSoftmax"))
PROBABILITIES = SOFTMAXES | {"Sigmoid"}
"""Operators that turn scores into probabilities, elementwise or along one axis."""

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
"""Operators that apply a mask to scores, with their data inputs."""

MASK_OFFSETS = frozenset(("Add", "Sub", "Where"))
"""Operators whose output holds scores together with a mask's large numbers."""

MASK_STEPS = frozenset((*MASKING, "Max", "Neg", "Cast", "Identity", "Clip", "Trilu", "Dropout"))
"""Operators that build a mask or pass it on, other than data movement."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerNorm:
    """A normalization of the last axes in one node: its inputs by index.

    Attributes:
        factor: The constant that channels are multiplied by.
        offset: The constant added to them; ``None``: it does not subtract the mean either.
        sources: How many inputs, from the first on, are added before they are normalized.
        bias: A constant that is added before as well.
    """

    factor: int = 1
    offset: int | None = None
    sources: int = 1
    bias: int | None = None

    @property
    def subtracts_mean(self) -> bool:
        """Whether the mean is subtracted, rather than only divided by the root mean square."""
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
"""Operators that normalize the last axes, also those with inputs that are not described here."""


def layer_norm(node: ir.Node) -> LayerNorm | None:
    """Return what is known of a normalization in one node."""
    return LAYER_NORMS.get(node.op_type)
