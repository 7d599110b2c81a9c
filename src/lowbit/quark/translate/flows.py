"""Which of Quark's flows a configuration takes, and the target that is in lowbit.

Quark has three: the NPU's CNN flow, the extended flow and the standard one. Options then switch
single rewrites, alignments, limits and fusions on or off; here they change a built-in target.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.extension.targets import (
    FOLDED_RELU,
    QUARK_EXTENDED,
    QUARK_NPU_CNN,
    QUARK_STANDARD,
    QUARK_STANDARD_SYMMETRIC,
)
from lowbit.quark.onnx.quantization.config.config import QuantizationConfig
from lowbit.quark.onnx.quantization.quant_utils import (
    ExtendedQuantFormat,
    Int16Method,
    PowerOfTwoMethod,
    VitisQuantFormat,
)
from lowbit.quark.translate.options import ExtraOptions, given_or
from lowbit.quark.translate.specs import fixed_neuron, is_block
from lowbit.targets.common import POOLS
from lowbit.targets.target import Alignment, AlignRule, FusedPair, ShiftLimits, Target

_ANY = 1 << 20
"""A bound that no number of fraction bits reaches."""

_NO_BOUNDS = (-_ANY, _ANY)


class Flow(enum.Enum):
    """One of Quark's ways to quantize; the value is the target it is in lowbit."""

    NPU_CNN = QUARK_NPU_CNN
    EXTENDED = QUARK_EXTENDED
    STANDARD = QUARK_STANDARD
    STANDARD_SYMMETRIC = QUARK_STANDARD_SYMMETRIC


_TRANSFORMS: Mapping[str, str] = MappingProxyType(
    {
        "ConvertReduceMeanToGlobalAvgPool": "reduce_mean_to_pool",
        "SplitLargeKernelPool": "split_large_pool",
        "ConvertSplitToSlice": "split_to_slice",
        "ConvertBNToConv": "batchnorm_to_conv",
    }
)
_ARITHMETIC: Mapping[str, str] = MappingProxyType(
    {
        "ConvertLeakyReluToDPUVersion": "leaky_relu_slope",
        "ConvertSigmoidToHardSigmoid": "sigmoid_to_hardsigmoid",
        "ConvertHardSigmoidToDPUVersion": "hardsigmoid_factor",
        "ConvertAvgPoolToDPUVersion": "average_pool_factor",
        "ConvertReduceMeanToDPUVersion": "reduce_mean_factor",
        "ConvertClipToDPUVersion": "round_clip_bounds",
    }
)
_NOT_BY_DEFAULT = ("ConvertClipToDPUVersion",)
ALIGNED: tuple[tuple[str, tuple[str, ...], AlignRule], ...] = (
    ("AlignConcat", ("Concat",), "output"),
    ("AlignPool", POOLS, "input"),
    ("AlignPad", ("Pad",), "output"),
    ("AlignSlice", ("Slice",), "input"),
    ("AlignTranspose", ("Transpose",), "output"),
    ("AlignReshape", ("Reshape",), "output"),
)
"""In the order Quark applies them; the rule is the extended flow's, the NPU's is always lowest."""

_FUSED: Mapping[str, str] = MappingProxyType(
    {
        "RemoveQDQConvRelu": "Relu",
        "RemoveQDQConvClip": "Clip",
        "RemoveQDQConvLeakyRelu": "LeakyRelu",
        "RemoveQDQConvPRelu": "PRelu",
    }
)
_TRANSFORMER = ("Gemm", "MatMul")


def flow_of(config: QuantizationConfig, options: ExtraOptions) -> Flow:
    """Return the flow that Quark would take; several formats are the extended flow's business.

    The NPU's is for power-of-two scales alone: elsewhere ``enable_npu_cnn`` chooses operators and
    rewrites only, and AMD's scripts set it for every preset.
    """
    if options.TensorQuantOverrides or options.MixedPrecisionTensor:
        return Flow.EXTENDED
    if config.quant_format is ExtendedQuantFormat.QDQ or isinstance(
        config.quant_format, VitisQuantFormat
    ):
        return Flow.EXTENDED
    if config.enable_npu_cnn and isinstance(
        config.calibrate_method, (PowerOfTwoMethod, Int16Method)
    ):
        return Flow.NPU_CNN
    return Flow.STANDARD_SYMMETRIC if options.ActivationSymmetric else Flow.STANDARD


def target_of(
    flow: Flow, config: QuantizationConfig, options: ExtraOptions, op_types: Iterable[str]
) -> Target:
    """Return the flow's target, changed by what the options say.

    ``op_types`` are those of the model, for options that speak of all.
    """
    base = flow.value
    rewrites = config.enable_npu_cnn or config.enable_npu_transformer
    casts = options.BF16QDQToCast or options.EnableVaimlBF16
    rewrites = rewrites or (flow is Flow.EXTENDED and not casts)
    return msgspec.structs.replace(
        base,
        weight_formats=_weight_formats(flow, base),
        operators=_operators(base, config, options, op_types),
        every_operator=bool(options.QuantizeAllOpTypes),
        data_movement="always" if options.ForceQuantizeNoInputCheck else "after_quantized",
        transforms=_transforms(options, default=rewrites),
        arithmetic=_arithmetic(flow, options),
        calibrate_arithmetic=False,
        block_axes="channels",
        align=_align(flow, options),
        limits=_limits(base.limits, options),
        fuse=_fuse(flow, base.fuse, config, options),
    )


def _weight_formats(flow: Flow, base: Target) -> tuple[IntegerFormat, ...]:
    """Return the target's formats and 4 bits, which Quark's documentation promises."""
    if flow is Flow.NPU_CNN:
        return base.weight_formats
    return (*base.weight_formats, IntegerFormat.INT4, IntegerFormat.UINT4)


def _operators(
    base: Target, config: QuantizationConfig, options: ExtraOptions, op_types: Iterable[str]
) -> tuple[str, ...]:
    chosen: Sequence[str] = config.op_types_to_quantize or options.OpTypesToQuantize or ()
    if not chosen:
        every = QUARK_NPU_CNN.operators if config.enable_npu_cnn else base.operators
        chosen = _TRANSFORMER if config.enable_npu_transformer else every
    extra = [*config.extra_op_types_to_quantize, *(options.ExtraOpTypesToQuantize or ())]
    if options.QuantizeAllOpTypes:
        extra += op_types
    passing = options.CalibPassthroughOpTypes or ()
    return tuple(name for name in dict.fromkeys([*chosen, *extra]) if name not in passing)


def _transforms(options: ExtraOptions, *, default: bool) -> tuple[str, ...]:
    if options.SkipPreprocess:
        return ()
    return tuple(name for key, name in _TRANSFORMS.items() if _is_on(options, key, default=default))


def _arithmetic(flow: Flow, options: ExtraOptions) -> tuple[str, ...]:
    names = []
    if options.SimulateDPU is not False and flow in (Flow.NPU_CNN, Flow.EXTENDED):
        npu = flow is Flow.NPU_CNN
        names = [
            name
            for key, name in _ARITHMETIC.items()
            if _is_on(options, key, default=npu and key not in _NOT_BY_DEFAULT)
        ]
    return (*names, "clip_to_relu") if options.ConvertClipToRelu else tuple(names)


def _align(flow: Flow, options: ExtraOptions) -> tuple[Alignment, ...]:
    if flow not in (Flow.NPU_CNN, Flow.EXTENDED) or options.NPULimitationCheck is False:
        return ()
    rows = []
    for key, operators, rule in ALIGNED:
        npu = flow is Flow.NPU_CNN
        if npu and key in ("AlignTranspose", "AlignReshape"):
            continue
        if _is_on(options, key, default=npu):
            rows.append(Alignment(operators=operators, rule="lowest" if npu else rule))
    return tuple(rows)


def _limits(limits: ShiftLimits | None, options: ExtraOptions) -> ShiftLimits | None:
    if limits is None or options.NPULimitationCheck is False:
        return None
    lifted: dict[str, Any] = {}
    if options.AdjustShiftRead is False:
        lifted["read"] = _ANY
    if options.AdjustShiftWrite is False:
        lifted.update(write_add=_NO_BOUNDS, write_mul=_NO_BOUNDS)
    if options.AdjustShiftCut is False:
        lifted["cut"] = _NO_BOUNDS
    if options.AdjustShiftBias is False:
        lifted.update(bias_high=_ANY, bias_width=_ANY)
    if options.AdjustHardSigmoid is False:
        lifted.update(
            hardsigmoid_input=_NO_BOUNDS,
            hardsigmoid_output_low=-_ANY,
            hardsigmoid_shift=_NO_BOUNDS,
        )
    if options.AdjustShiftSwish is False:
        lifted["swish"] = _NO_BOUNDS
    return msgspec.structs.replace(limits, **lifted)


def _fuse(
    flow: Flow, pairs: Sequence[FusedPair], config: QuantizationConfig, options: ExtraOptions
) -> tuple[FusedPair, ...]:
    blocks = is_block(fixed_neuron(config.quant_format, config.activation_type))
    # Quark removes pairs by their place, which a boundary's pairs have shifted: none is removed.
    kept_apart = options.QDQKeepRemovableActivations or options.EnableDualQuantNodePairs
    if kept_apart or (blocks and not options.RemoveFusedQDQ):
        return ()
    kept = {word for key, word in _FUSED.items() if _is_on(options, key, default=True)}
    fused = [_only(pair, kept) for pair in pairs]
    first = fused[0]
    if options.RemoveQDQConvGelu:
        consumers = (*first.consumers, "Gelu")
        fused[0] = first = msgspec.structs.replace(first, consumers=consumers)
    if options.RemoveQDQInstanceNorm:
        producers = (*first.producers, "InstanceNormalization")
        fused[0] = msgspec.structs.replace(first, producers=producers)
    if flow is Flow.EXTENDED and options.FoldRelu and not options.ActivationSymmetric:
        fused.append(FOLDED_RELU)
    if options.RemoveQDQMulAdd:
        fused.append(FusedPair(producers=("Mul",), consumers=("Add",)))
    for producer, consumer in options.RemoveQDQBetweenOps or ():
        fused.append(FusedPair(producers=(producer,), consumers=(consumer,)))
    return tuple(pair for pair in fused if pair.consumers)


def _only(pair: FusedPair, kept: set[str]) -> FusedPair:
    """Return a pair without the activations whose fusion is switched off."""
    switchable = set(_FUSED.values())
    consumers = tuple(c for c in pair.consumers if c not in switchable or c in kept)
    return msgspec.structs.replace(pair, consumers=consumers)


def _is_on(options: ExtraOptions, key: str, *, default: bool) -> bool:
    return bool(given_or(getattr(options, key), default))
