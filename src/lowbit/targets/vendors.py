"""Runtimes of other vendors, from what they publish: none of them could be run here.

docs/targets.md has the source of each, and which lists of operators are a choice rather than a table.
"""

from __future__ import annotations

from lowbit.numerics.formats import IntegerFormat
from lowbit.ops.linear import LINEAR
from lowbit.ops.traits import DATA_MOVEMENT, OPERATORS
from lowbit.targets.common import COMPUTING, INTEGERS8, PADDED_POOLS, POOLS, WITH_ACTIVATION
from lowbit.targets.target import Alignment, FusedPair, Target

_INT8 = (IntegerFormat.INT8,)


def _known(names: str) -> tuple[str, ...]:
    """Return the operators of a published table that have a row in ``lowbit.ops``."""
    return tuple(name for name in dict.fromkeys(names.split()) if name in OPERATORS)


# onnxruntime's page of the execution provider, "Supported ONNX operators".
_QNN_TABLE = (
    "Abs Add ArgMax AveragePool BatchNormalization Clip Concat Conv ConvTranspose Cos DepthToSpace "
    "Div Elu Exp Expand Flatten Floor Gather Gelu Gemm GlobalAveragePool GridSample HardSwish "
    "InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization MatMul "
    "Max MaxPool Min Mul Neg PRelu Pad Pow ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu "
    "Reshape Resize Round Sigmoid Sign Sin Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub Tanh "
    "Tile Transpose Unsqueeze Where com.microsoft::Gelu"
)

QNN = Target(
    name="qnn",
    description="Qualcomm NPUs (HTP) through onnxruntime's QNN execution provider (U8S8_PERCHANNEL)",
    operators=_known(_QNN_TABLE),
    activation_formats=(IntegerFormat.UINT8, IntegerFormat.UINT16),
    weight_formats=INTEGERS8,
    shares=tuple(name for name in DATA_MOVEMENT if name in _QNN_TABLE.split()),
    # What is not quantized leaves the NPU.
    data_movement="always",
    float_parts=("masks",),
    fuse=(WITH_ACTIVATION, PADDED_POOLS),
)


def _float_biases(name: str, description: str, more: str) -> Target:
    """Return a target of symmetric int8 whose layers add their biases, and may end, in float.

    ``more`` are the operators other than layers, pools and data movement.
    """
    return Target(
        name=name,
        description=description,
        operators=_known(f"{' '.join((*LINEAR, *POOLS, *DATA_MOVEMENT))} {more}"),
        activation_formats=_INT8,
        weight_formats=_INT8,
        symmetric=True,
        integer_bias=False,
        shares=DATA_MOVEMENT,
        float_outputs=(*LINEAR, *POOLS, "Add"),
        fuse=(WITH_ACTIVATION, PADDED_POOLS),
    )


TENSORRT = _float_biases(
    "tensorrt",
    "NVIDIA TensorRT, explicit quantization: symmetric int8, biases in float (A8W8)",
    "Add Mul Concat Relu Clip LeakyRelu Sigmoid",
)

COREML = _float_biases(
    "coreml",
    "Apple Core ML programs, 8-bit weights and activations, iOS 17 (A8W8)",
    "Add Concat Relu Clip LeakyRelu",
)

VITIS_AI = Target(
    name="vitis-ai",
    description="AMD DPUs of adaptive SoCs through the Vitis AI execution provider (XINT8)",
    operators=_known(
        f"{' '.join(LINEAR)} {' '.join(POOLS)} Add Mul Max Concat Pad Resize Relu Clip LeakyRelu PRelu "
        "HardSigmoid Reshape Flatten Transpose Squeeze Unsqueeze DepthToSpace SpaceToDepth Slice ReduceMean"
    ),
    activation_formats=_INT8,
    weight_formats=_INT8,
    power_of_two=True,
    per_channel=False,
    symmetric=True,
    shares=("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Resize"),
    align=(Alignment(operators=("Concat", "MaxPool", "Pad", "Slice"), rule="merged"),),
    fuse=(
        FusedPair(
            producers=COMPUTING, consumers=("Relu", "Clip", "LeakyRelu"), clips=((0.0, 6.0),)
        ),
        PADDED_POOLS,
    ),
    transforms=("reduce_mean_to_pool", "split_to_slice", "batchnorm_to_conv"),
)

VENDORS = (QNN, TENSORRT, COREML, VITIS_AI)
