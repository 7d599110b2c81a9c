"""From one of Quark's configurations to everything a run of lowbit needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import onnx_ir as ir

from lowbit.config.config import QuantConfig
from lowbit.config.mixed_precision import MixedPrecision
from lowbit.config.refinement import AdaRound, Refinement
from lowbit.config.specs import AccumulatorBias, BiasSpec, IntegerSpec, Spec, TensorOverride
from lowbit.config.transforms import Rotation
from lowbit.numerics.formats import IntegerFormat
from lowbit.numerics.metrics import Metric
from lowbit.quark.errors import QuarkConfigError, say
from lowbit.quark.extension import QuarkCle, QuarkSmoothQuant
from lowbit.quark.onnx.quantization.config.config import QuantizationConfig
from lowbit.quark.onnx.quantization.config.custom_config import DefaultConfigMapping
from lowbit.quark.translate.algorithms import (
    GptqParams,
    gptq_refinement,
    gptq_weight,
    read_finetune,
    read_gptq,
    read_rotation,
    refinement_of,
)
from lowbit.quark.translate.flows import Flow, flow_of, target_of
from lowbit.quark.translate.mixed_precision import (
    Precision,
    read_mixed_precision,
    with_boundaries,
)
from lowbit.quark.translate.options import ExtraOptions, given_or, read_options
from lowbit.quark.translate.ranges import check_channel_axes, given_ranges
from lowbit.quark.translate.selection import (
    LayerException,
    Nodes,
    any_of,
    find_exceptions,
    inputs_of,
    subgraph_rules,
    tensor_overrides,
    unquantized_outputs,
)
from lowbit.quark.translate.specs import activation_spec, weight_spec
from lowbit.targets.target import Target

_CLE_THRESHOLD = 2e-7


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job for a model; ``metric`` is the user's measure for mixed precision."""

    config: QuantConfig
    target: Target
    options: ExtraOptions
    metric: Metric | None = None


def make_job(
    config: QuantizationConfig,
    model: ir.Model,
    *,
    layers: Sequence[LayerException] = (),
    group: int | None = None,
    lenient: bool,
) -> Job:
    """Return what a configuration, with its exceptions by layer, means for a model.

    Neither is changed. So many weights as ``group`` says share a scale, which the older API has no
    word for. ``lenient`` turns misspelt names into warnings.
    """
    options = read_options(config.extra_options, lenient=lenient)
    if config.execution_providers not in ([], ["CPUExecutionProvider"]):
        say(f"execution_providers={config.execution_providers}: calibration runs on the CPU")
    nodes = Nodes(model, lenient=lenient)
    if config.per_channel:
        check_channel_axes(options.QDQOpTypePerChannelSupportToAxis or {}, nodes)
    flow = Flow.EXTENDED if layers else flow_of(config, options)
    activation = _activation(config, options, flow)
    weight = weight_spec(config, options, group)
    gptq = _gptq(options, lenient=lenient)
    if gptq is not None:
        weight = gptq_weight(weight, gptq)
    exceptions = find_exceptions(layers, nodes, activation, weight)
    mixed, metric = _mixed_precision(config, options, activation, weight, lenient=lenient)
    quant = QuantConfig(
        name=f"quark {name_of(config)}",
        activation=None if options.WeightsOnly or gptq is not None else activation,
        weight=weight,
        bias=_bias(flow, activation, weight, options),
        target=flow.value.name,
        rules=(*exceptions.rules, *subgraph_rules(config.subgraphs_to_exclude, nodes)),
        include=nodes.patterns(
            [*config.nodes_to_quantize, *(options.NodesToQuantize or ())], "nodes_to_quantize"
        ),
        exclude=_excluded(config, options, nodes),
        tensors=(
            *given_ranges(options, nodes),
            *exceptions.tensors,
            *_tensors(config, options, nodes, activation),
        ),
        domain=_domain(flow, options),
        head="int8",
        rotation=_rotate(config, options),
        equalization=_equalize(config, options),
        smooth_quant=_smooth(config, options),
        bias_correction=bool(options.BiasCorrection),
        casts=bool(options.BF16QDQToCast or options.EnableVaimlBF16),
        refinement=_refine(config, options, weight, gptq, lenient=lenient),
        mixed_precision=mixed,
    )
    target = target_of(flow, config, options, nodes.op_types())
    if options.EnableDualQuantNodePairs and exceptions.layers:
        quant = with_boundaries(quant, model, target, exceptions)
    return Job(config=quant, target=target, options=options, metric=metric)


def name_of(config: QuantizationConfig) -> str:
    """Return the name of the preset a configuration equals, or ``custom``."""
    return next(
        (name for name, preset in DefaultConfigMapping.items() if preset == config), "custom"
    )


def _activation(config: QuantizationConfig, options: ExtraOptions, flow: Flow) -> Spec:
    if flow is Flow.NPU_CNN and not options.ActivationSymmetric:
        raise QuarkConfigError(
            "enable_npu_cnn needs symmetric activations: set ActivationSymmetric to True"
        )
    return activation_spec(config, options)


def _bias(flow: Flow, activation: Spec, weight: Spec, options: ExtraOptions) -> BiasSpec | None:
    if options.QuantizeBias is False:
        return None
    if not isinstance(weight, IntegerSpec):
        return weight
    in_accumulator = flow is not Flow.NPU_CNN if options.Int32Bias is None else options.Int32Bias
    if not isinstance(activation, IntegerSpec) or 32 in (
        activation.format.bits,
        weight.format.bits,
    ):
        # There is no scale to multiply with, or their product is too fine for any bias.
        in_accumulator = False
    if not in_accumulator and not options.Int16Bias:
        return msgspec.structs.replace(weight, per_channel=False, group_size=None)
    repair = options.AdjustWeightScaleForInt32Bias or (
        options.QDQDisableWeightAdjustForInt32Bias is False
    )
    return AccumulatorBias(
        format=IntegerFormat.INT16 if options.Int16Bias else IntegerFormat.INT32,
        repair=repair,
        truncate_realigned=True,
    )


def _domain(flow: Flow, options: ExtraOptions) -> Any:
    return "com.microsoft" if flow is Flow.EXTENDED or options.UseQDQContribOps else "auto"


def _excluded(config: QuantizationConfig, options: ExtraOptions, nodes: Nodes) -> tuple[str, ...]:
    first = [*config.input_nodes, *(options.InputNodes or ())]
    last = [*config.output_nodes, *(options.OutputNodes or ())]
    patterns = [
        *nodes.patterns(config.nodes_to_exclude, "nodes_to_exclude"),
        *nodes.outside(first, last),
    ]
    const_only = options.MatMulConstBOnly
    if const_only or (const_only is None and config.enable_npu_transformer):
        products = nodes.of_types(["MatMul"])
        dynamic = [n.name for n in products if inputs_of(n)[1] not in nodes.constants]
        patterns += any_of(name for name in dynamic if name)
    return tuple(patterns)


def _tensors(
    config: QuantizationConfig, options: ExtraOptions, nodes: Nodes, start: Spec
) -> tuple[TensorOverride, ...]:
    given: dict[str, Any] = dict(options.TensorQuantOverrides or {})
    if config.specific_tensor_precision or options.SpecificTensorPrecision:
        for kind, names in (options.MixedPrecisionTensor or {}).items():
            given.update({name: {"quant_type": kind} for name in names})
    bare = [
        *nodes.of_types(options.OpTypesToExcludeOutputQuantization or ()),
        *nodes.named(
            options.NodesToExcludeOutputQuantization or (), "NodesToExcludeOutputQuantization"
        ),
    ]
    return (*tensor_overrides(given, nodes, start), *unquantized_outputs(bare))


def _equalize(config: QuantizationConfig, options: ExtraOptions) -> QuarkCle | None:
    if not config.include_cle:
        return None
    return QuarkCle(
        steps=given_or(options.CLESteps, 1),
        weight_threshold=given_or(options.CLEWeightThreshold, 0.5),
        append_bias=given_or(options.CLEScaleAppendBias, True),
        use_threshold=given_or(options.CLEScaleUseThreshold, True),
        total_layer_diff_threshold=given_or(options.CLETotalLayerDiffThreshold, _CLE_THRESHOLD),
        replace_relu6=bool(options.ReplaceClip6Relu),
    )


def _rotate(config: QuantizationConfig, options: ExtraOptions) -> Rotation | None:
    if not config.include_rotation:
        return None
    return read_rotation(options)


def _smooth(config: QuantizationConfig, options: ExtraOptions) -> QuarkSmoothQuant | None:
    if not config.include_sq:
        return None
    return QuarkSmoothQuant(alpha=given_or(options.SmoothAlpha, 0.5))


def _refine(
    config: QuantizationConfig,
    options: ExtraOptions,
    weight: Spec,
    gptq: GptqParams | None,
    *,
    lenient: bool,
) -> Refinement | None:
    given: Mapping[str, Any] | None = options.FastFinetune
    if not config.include_fast_ft and given is None:
        return None if gptq is None else gptq_refinement(gptq)
    if gptq is not None:
        raise QuarkConfigError(
            "GPTQ and fast finetuning both choose how weights are rounded: take one of them"
        )
    if not config.include_fast_ft:
        say("FastFinetune is given without include_fast_ft: the model is finetuned, as asked for")
    refinement = refinement_of(read_finetune(given or {}, lenient=lenient))
    if isinstance(refinement, AdaRound) and not isinstance(weight, IntegerSpec):
        raise QuarkConfigError(
            f"AdaRound chooses between two integers, and weights in {weight.describe()} have none: "
            "take AdaQuant (OptimAlgorithm 'adaquant')"
        )
    return refinement


def _mixed_precision(
    config: QuantizationConfig,
    options: ExtraOptions,
    activation: Spec,
    weight: Spec,
    *,
    lenient: bool,
) -> tuple[MixedPrecision | None, Metric | None]:
    given = options.AutoMixprecision
    if not config.include_auto_mp and not given:
        return None, None
    if not config.include_auto_mp:
        say("AutoMixprecision is given without include_auto_mp: precision is mixed, as asked for")
    return read_mixed_precision(
        given or {}, Precision(activation, weight, options), lenient=lenient
    )


def _gptq(options: ExtraOptions, *, lenient: bool) -> GptqParams | None:
    if options.UseGPTQ:
        return read_gptq(options.GPTQParams or {}, lenient=lenient)
    if options.GPTQParams:
        say("GPTQParams is given without UseGPTQ, which it needs to have an effect")
    return None
