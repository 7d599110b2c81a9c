"""The table of extra options: each one's type, what becomes of it, and reading it from a dictionary.

``does`` says where in a lowbit configuration it goes, ``ignored`` why it has no effect (said once
as a warning), ``refused`` why it cannot be done (an error, unless it only asks for the default).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np

from lowbit.errors import did_you_mean
from lowbit.quark.errors import NotSupportedError, QuarkConfigError, say

Effect: TypeAlias = Literal["does", "ignored", "refused"]


def does(where: str) -> msgspec.Meta:
    """Mark an option that has its effect."""
    return msgspec.Meta(extra={"effect": "does", "why": where})


def ignored(why: str, *anyway: Any) -> msgspec.Meta:
    """Mark an option that is accepted and has no effect; ``anyway`` is what is done in any case."""
    return msgspec.Meta(extra={"effect": "ignored", "why": why, "anyway": anyway})


def refused(why: str) -> msgspec.Meta:
    """Mark an option that is an error."""
    return msgspec.Meta(extra={"effect": "refused", "why": why})


Flag: TypeAlias = bool | None
Names: TypeAlias = list[str] | None
_TRANSFORM = does("the target's graph rewrites before calibration")
_ARITHMETIC = does("the target's arithmetic, put into the graph as nodes")
_LIMIT = does("the target's shift limits")
_ALIGN = does("which tensors the target aligns")
_FUSE = does("which pairs the target fuses")
_SELECT = does("which nodes are quantized")
_BLOCKS = does("the block format")
_SAME = ignored(
    "it changes how a file looks, not what it computes; lowbit writes one pair per tensor"
)
_NORMAL = ignored(
    "lowbit brings every model into its own normal form, which computes the same", True
)
_FLOAT32 = ignored("half-precision models are always quantized in float32", True)
_SPEED = ignored("lowbit measures while it runs, in memory that does not grow with the data", True)
_UNREAD = ignored("AMD Quark reads it in no Q/DQ flow")
_RANGES = does("tensors: ranges from the file if it exists; if not, it is written")
_PASSES = does("a list of passes, each as the option it is")
_NO_PLOTS = ignored("the report shows ranges and errors instead")


class ExtraOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every extra option of Quark 0.13, typed; ``None`` where it is not given."""

    # Symmetry and formats
    ActivationSymmetric: Annotated[Flag, does("activation.symmetric")] = None
    WeightSymmetric: Annotated[Flag, does("weight.symmetric")] = None
    ActivationScaled: Annotated[Flag, does("activation.scaled, for 16-bit floats")] = None
    WeightScaled: Annotated[Flag, does("weight.scaled, for 16-bit floats")] = None
    QuantizeFP16: Annotated[Flag, _FLOAT32] = None
    UseFP32Scale: Annotated[Flag, _FLOAT32] = None
    ConvertFP16ToFP32: Annotated[Flag, _FLOAT32] = None
    UseUnsignedReLU: Annotated[Flag, _UNREAD] = None
    QuantizeBias: Annotated[Flag, does("bias: none if False")] = None
    Int32Bias: Annotated[Flag, does("bias: in the accumulator's scale, or its own if False")] = None
    Int16Bias: Annotated[Flag, does("bias.format")] = None
    AdjustBiasScale: Annotated[
        Flag, ignored("a bias always has the scale its layer accumulates in", True)
    ] = None
    AdjustWeightScaleForInt32Bias: Annotated[Flag, does("bias.repair")] = None
    QDQDisableWeightAdjustForInt32Bias: Annotated[Flag, does("not bias.repair")] = None
    UsePowerOf2Scale: Annotated[Flag, does("activation.power_of_two, weight.power_of_two")] = None
    Int16Scale: Annotated[
        Flag, does("activation.method and weight.method: scales of the form m / 2**n")
    ] = None
    WeightsOnly: Annotated[Flag, does("activation: none")] = None
    UseQDQContribOps: Annotated[Flag, does("domain")] = None
    AlignEltwiseQuantType: Annotated[
        Flag, ignored("a constant combined with wider activations always has their format", True)
    ] = None
    BFPAttributes: Annotated[dict[str, Any] | None, _BLOCKS] = None
    MXAttributes: Annotated[dict[str, Any] | None, _BLOCKS] = None
    BF16QDQToCast: Annotated[Flag, does("how 16-bit floats are written: as Cast")] = None
    BF16WithClip: Annotated[Flag, does("a Clip before activations become bfloat16")] = None
    EnableVaimlBF16: Annotated[
        Flag, does("float32 in the file: weights rounded to bfloat16, Cast at the inputs alone")
    ] = None
    RefineBlockAxis: Annotated[Flag, ignored("blocks always lie along what is summed up", True)] = (
        None
    )

    # Preparing the model
    RemoveInputInit: Annotated[Flag, _NORMAL] = None
    SimplifyModel: Annotated[Flag, _NORMAL] = None
    SimplifyModelOptions: Annotated[dict[str, Any] | None, _NORMAL] = None
    OptimizeModel: Annotated[Flag, _NORMAL] = None
    FoldBatchNorm: Annotated[Flag, _NORMAL] = None
    FuseInstanceNorm: Annotated[Flag, _NORMAL] = None
    FuseL2Norm: Annotated[Flag, _NORMAL] = None
    FuseGelu: Annotated[Flag, _NORMAL] = None
    FuseLayerNorm: Annotated[Flag, _NORMAL] = None
    CopySharedInit: Annotated[Names, _NORMAL] = None
    CopyBiasInit: Annotated[Names, _NORMAL] = None
    FillAllValueInfo: Annotated[Flag, _NORMAL] = None
    SkipPreprocess: Annotated[Flag, does("no rewrites")] = None
    ConvertOpsetVersion: Annotated[int | None, does("the operator set of the model")] = None
    ConvertNCHWToNHWC: Annotated[Flag, does("Transpose at four-dimensional inputs, outputs")] = None
    FixShapes: Annotated[str | None, does("the shapes of inputs")] = None
    ShapeShifterYaml: Annotated[str | None, _PASSES] = None
    PreprocessYAML: Annotated[str | None, _PASSES] = None
    ConvertBNToConv: Annotated[Flag, _TRANSFORM] = None
    ConvertReduceMeanToGlobalAvgPool: Annotated[Flag, _TRANSFORM] = None
    SplitLargeKernelPool: Annotated[Flag, _TRANSFORM] = None
    ConvertSplitToSlice: Annotated[Flag, _TRANSFORM] = None
    ConvertClipToRelu: Annotated[Flag, _ARITHMETIC] = None
    ReplaceClip6Relu: Annotated[Flag, does("equalization.replace_relu6")] = None

    # Which nodes and tensors
    OpTypesToQuantize: Annotated[Names, _SELECT] = None
    NodesToQuantize: Annotated[Names, _SELECT] = None
    ExtraOpTypesToQuantize: Annotated[Names, _SELECT] = None
    InputNodes: Annotated[Names, _SELECT] = None
    OutputNodes: Annotated[Names, _SELECT] = None
    QuantizeAllOpTypes: Annotated[Flag, _SELECT] = None
    MatMulConstBOnly: Annotated[Flag, _SELECT] = None
    ForceQuantizeNoInputCheck: Annotated[Flag, does("the target's data_movement")] = None
    EnableSubgraph: Annotated[Flag, _UNREAD] = None
    NodesToExclude: Annotated[
        Names, ignored("AMD Quark reads it nowhere: give the nodes in exclude (nodes_to_exclude)")
    ] = None
    OpTypesToExcludeOutputQuantization: Annotated[Names, does("tensors")] = None
    NodesToExcludeOutputQuantization: Annotated[Names, does("tensors")] = None
    TensorQuantOverrides: Annotated[dict[str, Any] | None, does("tensors")] = None
    MixedPrecisionTensor: Annotated[dict[Any, Any] | None, does("tensors")] = None
    SpecificTensorPrecision: Annotated[Flag, does("tensors")] = None
    QDQOpTypePerChannelSupportToAxis: Annotated[
        dict[str, int] | None,
        does("nothing where it is the operator's own channel axis; an error where it is another"),
    ] = None
    EnableDualQuantNodePairs: Annotated[
        Flag, does("requantize, at the boundaries of layers in formats of their own")
    ] = None
    AddQDQPairToWeight: Annotated[Flag, _SAME] = None
    DedicatedQDQPair: Annotated[Flag, _SAME] = None
    DedicateDQNode: Annotated[Flag, _SAME] = None
    QDQKeepRemovableActivations: Annotated[Flag, _FUSE] = None
    RemoveQDQConvRelu: Annotated[Flag, _FUSE] = None
    RemoveQDQConvClip: Annotated[Flag, _FUSE] = None
    RemoveQDQConvLeakyRelu: Annotated[Flag, _FUSE] = None
    RemoveQDQConvPRelu: Annotated[Flag, _FUSE] = None
    RemoveQDQConvGelu: Annotated[Flag, _FUSE] = None
    RemoveQDQInstanceNorm: Annotated[Flag, _FUSE] = None
    RemoveQDQMulAdd: Annotated[Flag, _FUSE] = None
    RemoveQDQBetweenOps: Annotated[list[tuple[str, str]] | None, _FUSE] = None
    RemoveFusedQDQ: Annotated[Flag, _FUSE] = None
    FoldRelu: Annotated[Flag, does("which pairs the target fuses; nothing if symmetric")] = None

    # Calibration
    CalibTensorRangeSymmetric: Annotated[Flag, does("activation.method.symmetric_range")] = None
    CalibMovingAverage: Annotated[Flag, does("activation.method.moving_average")] = None
    CalibMovingAverageConstant: Annotated[
        float | None, ignored("Quark collects all samples at once, and takes their mean")
    ] = None
    Percentile: Annotated[float | None, does("activation.method.percentile")] = None
    NumBins: Annotated[int | None, does("activation.method.bins")] = None
    NumQuantizedBins: Annotated[int | None, does("activation.method.levels")] = None
    Scenario: Annotated[Literal["same"] | None, does("the only one there is")] = None
    LWPMetric: Annotated[Literal["mae", "mse"] | None, does("activation.method.metric")] = None
    PercentileCandidates: Annotated[list[float] | None, does("activation.method.candidates")] = None
    LWPUseHistogram: Annotated[Flag, _SPEED] = None
    MinMSEModePof2Scale: Annotated[
        Literal["All", "MostCommon", "Percentile"] | None,
        ignored("the scale of least error over all samples is always searched", "All"),
    ] = None
    WeightCalibrateMethod: Annotated[Any, does("weight.method")] = None
    MinMSEModeFloatScale: Annotated[
        Literal["All", "HistCenter", "Percentile"] | None,
        ignored("the least error is always searched on all weights", "All"),
    ] = None
    MinimumRealRange: Annotated[float | None, _UNREAD] = None
    UseRandomData: Annotated[Flag, does("data")] = None
    RandomDataReaderInputShape: Annotated[dict[str, list[int]] | None, does("data")] = None
    RandomDataReaderInputDataRange: Annotated[dict[str, list[float]] | None, does("data")] = None
    CalibDataSize: Annotated[int | None, does("limit")] = None
    CalibWorkerNum: Annotated[int | None, _SPEED] = None
    CalibOptimizeMem: Annotated[Flag, _SPEED] = None
    CalibOptimizeDisk: Annotated[Flag, _SPEED] = None
    CalibPassthroughOpTypes: Annotated[
        Names,
        does("not quantized themselves; tensors: their outputs have the range of what they read"),
    ] = None
    SaveAndRestore: Annotated[str | None, _RANGES] = None
    TensorsRangeFile: Annotated[str | None, _RANGES] = None
    SaveTensorHistFig: Annotated[Flag, _NO_PLOTS] = None

    # The NPU's arithmetic and limits
    EnableNPUCnn: Annotated[Flag, does("target")] = None
    SimulateDPU: Annotated[Flag, _ARITHMETIC] = None
    ConvertLeakyReluToDPUVersion: Annotated[Flag, _ARITHMETIC] = None
    ConvertSigmoidToHardSigmoid: Annotated[Flag, _ARITHMETIC] = None
    ConvertHardSigmoidToDPUVersion: Annotated[Flag, _ARITHMETIC] = None
    ConvertAvgPoolToDPUVersion: Annotated[Flag, _ARITHMETIC] = None
    ConvertReduceMeanToDPUVersion: Annotated[Flag, _ARITHMETIC] = None
    ConvertSoftmaxToDPUVersion: Annotated[
        Flag, does("the NPU's Softmax in float32, rounded to bfloat16 after each step, which runs")
    ] = None
    ConvertInstanceNormToDPUVersion: Annotated[
        Flag, does("InstanceNormalization under AMD's name, with a body")
    ] = None
    ConvertClipToDPUVersion: Annotated[Flag, _ARITHMETIC] = None
    NPULimitationCheck: Annotated[Flag, does("whether limits and alignments hold at all")] = None
    MaxLoopNum: Annotated[int | None, ignored("limits are solved, not looped over")] = None
    AdjustShiftCut: Annotated[Flag, _LIMIT] = None
    AdjustShiftBias: Annotated[Flag, _LIMIT] = None
    AdjustShiftRead: Annotated[Flag, _LIMIT] = None
    AdjustShiftWrite: Annotated[Flag, _LIMIT] = None
    AdjustHardSigmoid: Annotated[Flag, _LIMIT] = None
    AdjustShiftSwish: Annotated[Flag, _LIMIT] = None
    AlignConcat: Annotated[Flag, _ALIGN] = None
    AlignPool: Annotated[Flag, _ALIGN] = None
    AlignPad: Annotated[Flag, _ALIGN] = None
    AlignSlice: Annotated[Flag, _ALIGN] = None
    AlignTranspose: Annotated[Flag, _ALIGN] = None
    AlignReshape: Annotated[Flag, _ALIGN] = None

    # Algorithms
    CLEBalanceMethod: Annotated[Literal["max"] | None, does("the only one there is")] = None
    CLESteps: Annotated[int | None, does("equalization.steps")] = None
    CLEWeightThreshold: Annotated[float | None, does("equalization.weight_threshold")] = None
    CLEScaleAppendBias: Annotated[Flag, does("equalization.append_bias")] = None
    CLEScaleUseThreshold: Annotated[Flag, does("equalization.use_threshold")] = None
    CLETotalLayerDiffThreshold: Annotated[
        float | None, does("equalization.total_layer_diff_threshold")
    ] = None
    SmoothAlpha: Annotated[float | None, does("SmoothQuant's alpha")] = None
    BiasCorrection: Annotated[Flag, does("bias_correction")] = None
    FastFinetune: Annotated[dict[str, Any] | None, does("refinement")] = None
    UseGPTQ: Annotated[Flag, does("refinement, activation: none")] = None
    GPTQParams: Annotated[dict[str, Any] | None, does("weight and refinement, with UseGPTQ")] = None
    RMatrixDim: Annotated[int | None, does("rotation, with include_rotation")] = None
    UseRandomHad: Annotated[Flag, does("rotation, with include_rotation")] = None
    RConfigPath: Annotated[str | None, does("rotation, with include_rotation")] = None
    AutoMixprecision: Annotated[dict[str, Any] | None, does("mixed_precision")] = None
    UseMatMulNBits: Annotated[Flag, does("weights of MatMul in blocks of 4 bits")] = None
    MatMulNBitsParams: Annotated[dict[str, Any] | None, does("with UseMatMulNBits")] = None
    QuantizationPreference: Annotated[
        Literal["accuracy", "speed", "resource_efficiency"] | None,
        ignored("a preset named *_ACCURATE of lowbit's own is the way to ask for accuracy"),
    ] = None

    # The run
    EvalMetrics: Annotated[Flag, does("prints how far the result is from float")] = None
    EvalDataReader: Annotated[Any, does("what EvalMetrics measures on")] = None
    PrintSummary: Annotated[Flag, does("whether a summary is printed")] = None
    IgnoreWarnings: Annotated[Flag, does("misspelt names are warnings, not errors")] = None
    DebugMode: Annotated[Flag, ignored("`lowbit plan` and the report say what was decided")] = None
    TmpDir: Annotated[str | None, ignored("the system's temporary folder is used")] = None
    ExecutionProviders: Annotated[
        Names, ignored("calibration runs on the CPU", ["CPUExecutionProvider"])
    ] = None
    UserCustomOpLibPath: Annotated[
        str | None, refused("models with custom operators cannot be quantized")
    ] = None
    CryptoMode: Annotated[Flag, does("ModelProto in and out, nothing on disk")] = None
    EncryptionAlgorithm: Annotated[
        str | None, ignored("CryptoMode writes no file that could be encrypted", "AES-256")
    ] = None
    NnapiSigmoid: Annotated[Flag, _UNREAD] = msgspec.field(default=None, name="extra.Sigmoid.nnapi")


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One row of the table."""

    key: str
    effect: Effect
    why: str
    anyway: tuple[Any, ...] = ()


def rows_of(kind: type[msgspec.Struct]) -> dict[str, Option]:
    """Return what becomes of each option of a dictionary, by its key."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    rows = {}
    for field in info.fields:
        extra = getattr(field.type, "extra", None) or {}
        rows[field.encode_name] = Option(field.encode_name, **extra)
    return rows


OPTIONS: dict[str, Option] = rows_of(ExtraOptions)


T = TypeVar("T", bound=msgspec.Struct)


def read_options(given: Mapping[str, Any], *, lenient: bool) -> ExtraOptions:
    """Return the options as a value; the dictionary stays as it is.

    A misspelt key is an error, or only a warning when ``lenient``.
    """
    # What has no effect may be of any type: AMD's own scripts give True for a list of names.
    acting = {
        key: value
        for key, value in given.items()
        if key not in OPTIONS or OPTIONS[key].effect != "ignored"
    }
    options = read_struct("extra_options", acting, ExtraOptions, lenient=lenient)
    for key, value in given.items():
        if key in OPTIONS:
            say_effect(OPTIONS[key], _python(value))
    return options


def read_struct(title: str, given: Mapping[str, Any], kind: type[T], *, lenient: bool) -> T:
    """Return a dictionary of parameters as a value of ``kind``, under the same rules."""
    keys = [field.encode_name for field in msgspec.structs.fields(kind)]
    known: dict[str, Any] = {}
    for key, value in given.items():
        if key in keys:
            known[key] = _python(value)
            continue
        message = f"{title} has no {key!r}{did_you_mean(str(key), keys)}"
        if not lenient:
            raise QuarkConfigError(message)
        say(f"{message} (it is ignored)")
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise QuarkConfigError(f"{title}: {error}") from error


def say_effect(option: Option, value: Any) -> None:
    """Say that an option has no effect, or raise where that cannot be, if a value asks for more."""
    if value is None or value in option.anyway:
        return
    if option.effect == "ignored":
        say(f"{option.key}={value!r} has no effect: {option.why}")
    if option.effect == "refused" and _asks(value):
        raise NotSupportedError(f"{option.key}={value!r} is not supported: {option.why}")


def given_or(value: Any, otherwise: Any) -> Any:
    """Return what an option says, or what holds where it is not given."""
    return otherwise if value is None else value


def _asks(value: Any) -> bool:
    """Whether a value asks for something beyond the default of doing nothing."""
    return value is not False and value not in ("", [], {})


def _python(value: Any) -> Any:
    """Return a number of NumPy as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
