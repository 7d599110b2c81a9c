"""Where AMD Quark 0.13 places Q/DQ in its flows, as targets, so that its presets mean the same model here."""

from __future__ import annotations

import msgspec

from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.ops.traits import OPERATORS
from lowbit.targets.builtin import (
    NPU_ARITHMETIC,
    NPU_FUSED,
    NPU_OPERATORS,
    NPU_REWRITES,
)
from lowbit.targets.common import (
    BLOCK_KINDS,
    COMPUTING,
    FLOATS,
    INTEGERS,
    INTEGERS8,
    PADDED_POOLS,
    POOLS,
)
from lowbit.targets.target import Alignment, FusedPair, ShiftLimits, Target

_NPU_ONLY = frozenset(
    "HardSigmoid Div Erf Sub Min Max ReduceMean DepthToSpace SpaceToDepth Slice PRelu "
    "LpNormalization".split()
)
_BASE = tuple(name for name in NPU_OPERATORS if name not in _NPU_ONLY)
_ANY_INTEGERS = (*INTEGERS, IntegerFormat.INT32, IntegerFormat.UINT32)
_SHARES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Resize", "MaxPool", "Gather")

FOLDED_RELU = FusedPair(producers=tuple(OPERATORS), consumers=("Relu", "Clip"))
"""A Relu after anything, whose bounds become those of the quantized range."""

QUARK_STANDARD = Target(
    name="quark-standard",
    description="where AMD Quark's standard flow puts Q/DQ (INT8_CNN_DEFAULT, U8S8_AAWS ...)",
    operators=_BASE,
    activation_formats=INTEGERS,
    weight_formats=INTEGERS,
    float_formats=(FloatFormat.FLOAT8E4M3FN,),
    shares=(*_SHARES, "AveragePool", "Split"),
    data_movement="always",
    float_parts=(),
    fuse=(
        FOLDED_RELU,
        FusedPair(producers=COMPUTING, consumers=("LeakyRelu", "PRelu")),
        PADDED_POOLS,
    ),
    calibrate_optimized=False,
    calibrate_padding=True,
    softmax_range=(0.0, 1.0),
)

QUARK_STANDARD_SYMMETRIC = msgspec.structs.replace(
    QUARK_STANDARD,
    name="quark-standard-symmetric",
    description="AMD Quark's standard flow with symmetric activations",
    fuse=NPU_FUSED,
)

QUARK_EXTENDED = Target(
    name="quark-extended",
    description="where AMD Quark's extended flow puts Q/DQ (A8W8, A16W8)",
    operators=NPU_OPERATORS,
    activation_formats=_ANY_INTEGERS,
    weight_formats=_ANY_INTEGERS,
    float_formats=FLOATS,
    format_kinds=BLOCK_KINDS,
    block_axes="channels",
    shares=_SHARES,
    data_movement="always",
    float_parts=(),
    align=(Alignment(operators=("Concat",), rule="output"),),
    fuse=NPU_FUSED,
    transforms=NPU_REWRITES,
    calibrate_optimized=False,
    calibrate_padding=True,
    softmax_range=(0.0, 1.0),
)

QUARK_NPU_CNN = Target(
    name="quark-npu-cnn",
    description="where AMD Quark's NPU flow puts Q/DQ, and how it adjusts them (XINT8)",
    operators=NPU_OPERATORS,
    activation_formats=INTEGERS8,
    weight_formats=(IntegerFormat.INT8,),
    power_of_two=True,
    per_channel=False,
    shares=_SHARES,
    data_movement="always",
    float_parts=(),
    align=(
        Alignment(operators=("Concat",), rule="lowest"),
        Alignment(operators=POOLS, rule="lowest"),
        Alignment(operators=("Pad",), rule="lowest"),
        Alignment(operators=("Slice",), rule="lowest"),
    ),
    fuse=NPU_FUSED,
    limits=ShiftLimits(contradictions="keep"),
    transforms=NPU_REWRITES,
    arithmetic=NPU_ARITHMETIC,
    calibrate_arithmetic=False,
    calibrate_optimized=False,
    calibrate_padding=True,
    softmax_range=(0.0, 1.0),
)
