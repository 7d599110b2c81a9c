"""Formats and operators that several built-in targets share."""

from __future__ import annotations

from lowbit.config.extensible import tag_of
from lowbit.config.specs import BfpSpec, MxSpec
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.ops.activations import FUSED_ACTIVATIONS
from lowbit.ops.families import MEAN_POOLS
from lowbit.ops.linear import LINEAR
from lowbit.targets.target import FusedPair

INTEGERS8 = (IntegerFormat.INT8, IntegerFormat.UINT8)
INTEGERS = (*INTEGERS8, IntegerFormat.INT16, IntegerFormat.UINT16)
FLOATS = (FloatFormat.BFLOAT16, FloatFormat.FLOAT16)
BLOCK_KINDS = (tag_of(BfpSpec), tag_of(MxSpec))

POOLS = ("MaxPool", *MEAN_POOLS)
COMPUTING = (*LINEAR, "Add", *POOLS)
"""Operators that targets fuse with the activation after them."""

PADDED_POOLS = FusedPair(producers=("Pad",), consumers=MEAN_POOLS)
WITH_ACTIVATION = FusedPair(producers=COMPUTING, consumers=FUSED_ACTIVATIONS)
