"""The built-in targets.

``ryzen-ai-cnn`` and ``onnxruntime`` are what we recommend. The ``quark-*`` targets place Q/DQ
where AMD Quark 0.13 does in its three flows, so that its presets mean the same model here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from lowbit.numerics.float16 import FloatFormat
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.traits import OPS
from lowbit.targets.target import Alignment, FusedPair, ShiftLimits, Target

_EIGHT = (IntegerFormat.INT8, IntegerFormat.UINT8)
_INTEGERS = (*_EIGHT, IntegerFormat.INT16, IntegerFormat.UINT16)
_FLOATS = tuple(FloatFormat)

_COMPUTE = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add")
_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool")
_RELUS = ("Relu", "LeakyRelu", "PRelu", "Clip")
_RELU6 = ((0.0, 6.0), (0.0, 1.0))
_PADDED_POOLS = FusedPair(producers=("Pad",), consumers=("AveragePool", "GlobalAveragePool"))

_QUARK_BASE = tuple(
    "Conv ConvTranspose Gemm MatMul Add Mul ArgMax Relu Clip LeakyRelu Sigmoid Softmax Tanh Gelu "
    "MaxPool AveragePool GlobalAveragePool Split Pad Reshape Transpose Squeeze Unsqueeze Resize "
    "Concat Where Gather EmbedLayerNormalization InstanceNormalization LayerNormalization".split()
)
_QUARK_NPU = (
    *_QUARK_BASE,
    *(
        "HardSigmoid Div Erf Sub Min Max ReduceMean DepthToSpace SpaceToDepth Slice PRelu "
        "LpNormalization"
    ).split(),
)
_QUARK_SHARES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Resize", "MaxPool", "Gather")
_QUARK_FUSE = (
    FusedPair(producers=(*_COMPUTE, *_POOLS), consumers=_RELUS, clips=_RELU6),
    _PADDED_POOLS,
)
_NPU_TRANSFORMS = (
    "reduce_mean_to_pool",
    "split_large_pool",
    "split_to_slice",
    "batchnorm_to_conv",
)
_NPU_ARITHMETIC = (
    "leaky_relu_slope",
    "sigmoid_to_hardsigmoid",
    "hardsigmoid_factor",
    "average_pool_factor",
    "reduce_mean_factor",
)
_MOVES_DATA = tuple(
    "Reshape Flatten Transpose Squeeze Unsqueeze Expand Tile Resize Slice Split Gather Pad "
    "DepthToSpace SpaceToDepth MaxPool".split()
)

ONNXRUNTIME = Target(
    name="onnxruntime",
    description="onnxruntime and every runtime that reads standard Q/DQ",
    operators=tuple(OPS),
    activation_formats=_INTEGERS,
    weight_formats=(*_INTEGERS, IntegerFormat.INT4, IntegerFormat.UINT4),
    float_formats=_FLOATS,
    blocks=True,
    shares=_MOVES_DATA,
    fuse=(FusedPair(producers=(*_COMPUTE, *_POOLS), consumers=_RELUS), _PADDED_POOLS),
)

RYZEN_AI = Target(
    name="ryzen-ai",
    description="AMD Ryzen AI NPUs, integer models with float scales (A8W8, A16W8)",
    operators=tuple(OPS),
    activation_formats=_INTEGERS,
    weight_formats=_EIGHT,
    shares=_MOVES_DATA,
    align=(Alignment(operators=("Concat",), rule="merged"),),
    fuse=_QUARK_FUSE,
    transforms=_NPU_TRANSFORMS,
)

RYZEN_AI_FLOAT = Target(
    name="ryzen-ai-float",
    description="AMD Ryzen AI NPUs, models in BF16, FP16 and block formats",
    operators=tuple(OPS),
    every_operator=True,
    activation_formats=_INTEGERS,
    weight_formats=_INTEGERS,
    float_formats=_FLOATS,
    blocks=True,
    shares=_MOVES_DATA,
    movers="always",
    fuse=_QUARK_FUSE,
)

RYZEN_AI_CNN = Target(
    name="ryzen-ai-cnn",
    description="AMD Ryzen AI NPUs, the fixed-point CNN datapath (XINT8)",
    operators=(*_QUARK_NPU, "Flatten"),
    activation_formats=_EIGHT,
    weight_formats=(IntegerFormat.INT8,),
    power_of_two=True,
    per_channel=False,
    shares=("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Resize", "Gather"),
    align=(
        Alignment(
            operators=("Concat", *_POOLS, "Pad", "Slice", "DepthToSpace", "SpaceToDepth"),
            rule="merged",
        ),
    ),
    fuse=_QUARK_FUSE,
    limits=ShiftLimits(),
    transforms=_NPU_TRANSFORMS,
    arithmetic=_NPU_ARITHMETIC,
)

QUARK_STANDARD = Target(
    name="quark-standard",
    description="where AMD Quark's standard flow puts Q/DQ (INT8_CNN_DEFAULT, U8S8_AAWS ...)",
    operators=_QUARK_BASE,
    activation_formats=_INTEGERS,
    weight_formats=_INTEGERS,
    shares=(*_QUARK_SHARES, "AveragePool", "Split"),
    movers="always",
    fuse=(
        FusedPair(producers=tuple(OPS), consumers=("Relu", "Clip")),
        FusedPair(producers=(*_COMPUTE, *_POOLS), consumers=("LeakyRelu", "PRelu")),
        _PADDED_POOLS,
    ),
    calibrate_optimized=False,
    softmax_range=(0.0, 1.0),
)

QUARK_STANDARD_SYMMETRIC = msgspec.structs.replace(
    QUARK_STANDARD,
    name="quark-standard-symmetric",
    description="AMD Quark's standard flow with symmetric activations",
    fuse=_QUARK_FUSE,
)

QUARK_EXTENDED = Target(
    name="quark-extended",
    description="where AMD Quark's extended flow puts Q/DQ (A8W8, A16W8)",
    operators=_QUARK_NPU,
    activation_formats=_INTEGERS,
    weight_formats=_INTEGERS,
    float_formats=_FLOATS,
    blocks=True,
    block_axes="quark",
    shares=_QUARK_SHARES,
    movers="always",
    align=(Alignment(operators=("Concat",), rule="output"),),
    fuse=_QUARK_FUSE,
    transforms=_NPU_TRANSFORMS,
    calibrate_optimized=False,
    softmax_range=(0.0, 1.0),
)

QUARK_FLOAT = msgspec.structs.replace(
    QUARK_EXTENDED,
    name="quark-float",
    description="AMD Quark's extended flow over every operator (BF16)",
    every_operator=True,
    align=(),
)

QUARK_BLOCK = msgspec.structs.replace(
    QUARK_EXTENDED,
    name="quark-block",
    description="AMD Quark's extended flow for block formats (BFP16, MX)",
    movers="behind",
    align=(),
    fuse=(),
)

QUARK_MIXED = msgspec.structs.replace(
    QUARK_BLOCK,
    name="quark-mixed",
    description="AMD Quark's extended flow for blocks and 16-bit floats together (BF16_BFP16)",
    fuse=QUARK_EXTENDED.fuse,
)

QUARK_NPU_CNN = Target(
    name="quark-npu-cnn",
    description="where AMD Quark's NPU flow puts Q/DQ, and how it adjusts them (XINT8)",
    operators=_QUARK_NPU,
    activation_formats=_EIGHT,
    weight_formats=(IntegerFormat.INT8,),
    power_of_two=True,
    per_channel=False,
    shares=_QUARK_SHARES,
    movers="always",
    align=(
        Alignment(operators=("Concat",), rule="lowest"),
        Alignment(operators=_POOLS, rule="lowest"),
        Alignment(operators=("Pad",), rule="lowest"),
        Alignment(operators=("Slice",), rule="lowest"),
    ),
    fuse=_QUARK_FUSE,
    limits=ShiftLimits(),
    transforms=_NPU_TRANSFORMS,
    arithmetic=_NPU_ARITHMETIC,
    calibrate_arithmetic=False,
    calibrate_optimized=False,
    softmax_range=(0.0, 1.0),
)

QUARK_VINT8 = Target(
    name="quark-vint8",
    description="AMD Quark's VINT8: a pair on every tensor, no NPU arithmetic",
    operators=tuple(OPS),
    activation_formats=_EIGHT,
    weight_formats=(IntegerFormat.INT8,),
    power_of_two=True,
    per_channel=False,
    shares=_QUARK_SHARES,
    movers="always",
    transforms=("batchnorm_to_conv", "split_to_slice"),
    arithmetic=("clip_to_relu",),
    calibrate_arithmetic=False,
    calibrate_optimized=False,
    softmax_range=(0.0, 1.0),
)

BUILTIN: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            ONNXRUNTIME,
            RYZEN_AI,
            RYZEN_AI_FLOAT,
            RYZEN_AI_CNN,
            QUARK_STANDARD,
            QUARK_STANDARD_SYMMETRIC,
            QUARK_EXTENDED,
            QUARK_FLOAT,
            QUARK_BLOCK,
            QUARK_MIXED,
            QUARK_NPU_CNN,
            QUARK_VINT8,
        )
    }
)
