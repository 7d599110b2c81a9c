"""The built-in targets: what we recommend for each device and runtime."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from lowbit.errors import ConfigError, did_you_mean
from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.activations import FUSED_ACTIVATIONS
from lowbit.ops.linear import LINEAR
from lowbit.ops.traits import DATA_MOVEMENT, OPERATORS
from lowbit.targets.common import (
    BLOCK_KINDS,
    COMPUTING,
    FLOATS,
    INTEGERS,
    INTEGERS8,
    PADDED_POOLS,
    POOLS,
    WITH_ACTIVATION,
)
from lowbit.targets.target import (
    Alignment,
    FusedPair,
    PairedSums,
    ShiftLimits,
    Target,
    read_target,
)
from lowbit.targets.vendors import VENDORS

_RELU6 = ((0.0, 6.0), (0.0, 1.0))
NPU_FUSED = (
    FusedPair(producers=COMPUTING, consumers=FUSED_ACTIVATIONS, clips=_RELU6),
    PADDED_POOLS,
)
NPU_OPERATORS = (
    *LINEAR,
    *FUSED_ACTIVATIONS,
    *POOLS,
    *(
        "Add Sub Mul Div Min Max ArgMax Where Sigmoid HardSigmoid Softmax Tanh Gelu Erf ReduceMean "
        "Split Pad Slice Reshape Transpose Squeeze Unsqueeze Resize Gather Concat DepthToSpace "
        "SpaceToDepth LpNormalization InstanceNormalization LayerNormalization"
    ).split(),
    "com.microsoft::EmbedLayerNormalization",
)
NPU_REWRITES = (
    "reduce_mean_to_pool",
    "split_large_pool",
    "split_to_slice",
    "batchnorm_to_conv",
)
NPU_ARITHMETIC = (
    "leaky_relu_slope",
    "sigmoid_to_hardsigmoid",
    "hardsigmoid_factor",
    "average_pool_factor",
    "reduce_mean_factor",
)

X86_PAIRS = PairedSums(
    operators=("Conv", "ConvTranspose", "Gemm", "MatMul", "LSTM"),
    activation=INTEGERS8,
    weight=(IntegerFormat.INT8,),
    pairs=("through_taps", "within_taps"),
)
"""The products that onnxruntime's and OpenVINO's kernels add in 16 bits on x86 without VNNI, as observed."""

ONNXRUNTIME = Target(
    name="onnxruntime",
    description="onnxruntime and every runtime that reads standard Q/DQ",
    operators=tuple(OPERATORS),
    activation_formats=INTEGERS,
    weight_formats=(*INTEGERS, IntegerFormat.INT4, IntegerFormat.UINT4),
    float_formats=FLOATS,
    format_kinds=BLOCK_KINDS,
    dequantizes=True,
    shares=DATA_MOVEMENT,
    # A convolution without a quantizer after it would run in float.
    float_outputs=("Gemm", "MatMul", "GlobalAveragePool", "ReduceMean"),
    fuse=(WITH_ACTIVATION, PADDED_POOLS),
    saturation=X86_PAIRS,
    fast_formats=(IntegerFormat.UINT8,),
    fast_product_formats=(IntegerFormat.INT8,),
    transforms=("separate_shared_weights", "compose_hardsigmoid", "normalized_add_to_sum"),
)

OPENVINO = msgspec.structs.replace(
    ONNXRUNTIME,
    name="openvino",
    description="OpenVINO on CPUs: int8 kernels that write floats where the output is final",
    activation_formats=INTEGERS8,
    weight_formats=INTEGERS8,
    float_formats=(),
    format_kinds=(),
    float_outputs=tuple(OPERATORS),
    transforms=("separate_shared_weights", "compose_hardsigmoid"),
)

ONNXRUNTIME_WEIGHTS = Target(
    name="onnxruntime-weights",
    description="onnxruntime, weights alone quantized or scales of activations found at run time",
    operators=tuple(OPERATORS),
    activation_formats=INTEGERS,
    weight_formats=(*INTEGERS, IntegerFormat.INT4, IntegerFormat.UINT4),
    dynamic=("MatMul", "LSTM"),
    dequantizes=True,
    packed=("GatherBlockQuantized", "DynamicQuantizeLSTM"),
    saturation=X86_PAIRS,
    transforms=(
        "separate_shared_weights",
        "gemm_to_matmul",
        "embed_layer_norm_to_gather",
        "normalized_add_to_sum",
    ),
)

MATMUL_NBITS = msgspec.structs.replace(
    ONNXRUNTIME_WEIGHTS,
    name="onnxruntime-nbits",
    description="onnxruntime and its generate() API, weights in MatMulNBits and GatherBlockQuantized",
    packed=("MatMulNBits", *ONNXRUNTIME_WEIGHTS.packed),
)

RYZEN_AI = Target(
    name="ryzen-ai",
    description="AMD Ryzen AI NPUs, integer models with float scales (A8W8, A16W8)",
    operators=tuple(OPERATORS),
    activation_formats=INTEGERS,
    weight_formats=INTEGERS8,
    dequantizes=True,
    shares=DATA_MOVEMENT,
    align=(Alignment(operators=("Concat",), rule="merged"),),
    # A final average takes next to no time off the NPU; eight bits of a network's
    # logits cost SqueezeNet more than the rest of A8W8 gains on power-of-two scales.
    float_outputs=("GlobalAveragePool", "ReduceMean"),
    fuse=NPU_FUSED,
    transforms=(*NPU_REWRITES, "separate_shared_weights", "compose_hardsigmoid"),
)

RYZEN_AI_FLOAT = Target(
    name="ryzen-ai-float",
    description="AMD Ryzen AI NPUs, models in BF16, FP16 and block formats",
    operators=tuple(OPERATORS),
    every_operator=True,
    activation_formats=INTEGERS,
    weight_formats=INTEGERS,
    float_formats=FLOATS,
    format_kinds=BLOCK_KINDS,
    shares=DATA_MOVEMENT,
    data_movement="always",
    float_parts=("masks",),
    fuse=NPU_FUSED,
)

RYZEN_AI_CNN = Target(
    name="ryzen-ai-cnn",
    description="AMD Ryzen AI NPUs, the fixed-point CNN datapath (XINT8)",
    operators=(*NPU_OPERATORS, "Flatten"),
    activation_formats=INTEGERS8,
    weight_formats=(IntegerFormat.INT8,),
    power_of_two=True,
    per_channel=False,
    shares=("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Resize", "Gather"),
    align=(
        Alignment(
            operators=("Concat", *POOLS, "Pad", "Slice", "DepthToSpace", "SpaceToDepth"),
            rule="merged",
        ),
    ),
    fuse=NPU_FUSED,
    limits=ShiftLimits(),
    transforms=(*NPU_REWRITES, "separate_shared_weights", "compose_hardsigmoid", "swish_gain"),
    arithmetic=NPU_ARITHMETIC,
)

VINT8 = Target(
    name="vint8",
    description="fixed-point int8 with a Q/DQ pair on every tensor, no NPU arithmetic",
    operators=tuple(OPERATORS),
    activation_formats=INTEGERS8,
    weight_formats=(IntegerFormat.INT8,),
    power_of_two=True,
    per_channel=False,
    shares=("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Resize", "MaxPool", "Gather"),
    data_movement="always",
    float_parts=("masks",),
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
            OPENVINO,
            ONNXRUNTIME_WEIGHTS,
            MATMUL_NBITS,
            RYZEN_AI,
            RYZEN_AI_FLOAT,
            RYZEN_AI_CNN,
            VINT8,
            *VENDORS,
        )
    }
)


_GROUP = "lowbit.targets"


def find_target(name: str) -> Target:
    """Return the target of that name, built in or installed, or the one in the file of that path.

    A package installs targets as entry points of the group ``lowbit.targets``, each a ``Target``.
    """
    if name in BUILTIN:
        return BUILTIN[name]
    if name.endswith(".json") or os.path.dirname(name):  # noqa: PTH120  # either separator
        return read_target(pathlib.Path(name))
    installed = {entry.name: entry for entry in importlib.metadata.entry_points(group=_GROUP)}
    if name in installed:
        target: Target = installed[name].load()
        return target
    also = f"installed: {', '.join(sorted(installed))}; " if installed else ""
    raise ConfigError(
        f"unknown target {name!r}{did_you_mean(name, [*BUILTIN, *installed])} "
        f"(built in: {', '.join(sorted(BUILTIN))}; {also}or give the path of a .json file)"
    )
