"""What options do to the target and the configuration, against Quark's documented defaults."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.quark_helpers import QUARK_BLOCK, QUARK_FLOAT, ListReader, quiet
from helpers.small_models import small_cnn
from onnx import helper, numpy_helper

from lowbit.config.methods import MinMax, MinMse
from lowbit.config.refinement import AdaQuant, AdaRound
from lowbit.config.specs import (
    BLOCKS,
    AccumulatorBias,
    BfpSpec,
    BiasSpec,
    FloatSpec,
    IntegerSpec,
    MxSpec,
    Spec,
)
from lowbit.graph import io
from lowbit.numerics.blocks import Element
from lowbit.numerics.formats import FloatFormat, IntegerFormat
from lowbit.ops.traits import OPERATORS
from lowbit.quark.errors import CompatibilityWarning, NotSupportedError, QuarkConfigError
from lowbit.quark.extension import (
    QuarkCle,
    QuarkEntropy,
    QuarkLayerwisePercentile,
    QuarkMinMse,
    QuarkPercentile,
    QuarkSmoothQuant,
)
from lowbit.quark.extension.targets import (
    QUARK_EXTENDED,
    QUARK_NPU_CNN,
    QUARK_STANDARD,
)
from lowbit.quark.onnx import (
    AdaRoundConfig,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    LayerWiseMethod,
    ModelQuantizer,
    PowerOfTwoMethod,
    QuantizationConfig,
    SmoothQuantConfig,
    VitisQuantFormat,
)
from lowbit.quark.onnx.quantization.config import get_default_config
from lowbit.quark.translate.job import Job, make_job
from lowbit.quark.translate.qconfig import with_algorithms
from lowbit.targets.target import Target

MODEL = io.load(small_cnn())


def _job(preset: str | QuantizationConfig, options: dict | None = None, **fields: Any) -> Job:
    config = get_default_config(preset) if isinstance(preset, str) else preset
    merged = {**config.extra_options, **(options or {})}
    changed = dataclasses.replace(config, extra_options=merged, **fields)
    return make_job(changed, MODEL, lenient=False)


_INT8 = IntegerSpec(format=IntegerFormat.INT8)
_UPOW2 = IntegerSpec(format=IntegerFormat.UINT8, power_of_two=True, method=QuarkMinMse())
_POW2 = IntegerSpec(format=IntegerFormat.INT8, power_of_two=True, method=QuarkMinMse())
_IN_ACCUMULATOR = AccumulatorBias(repair=False, truncate_realigned=True)
_BF16 = FloatSpec(format=FloatFormat.BFLOAT16)


def _asymmetric(kind: IntegerFormat, percent: float) -> IntegerSpec:
    method = QuarkPercentile(percentile=percent)
    return IntegerSpec(format=kind, symmetric=False, method=method)


_MEANT: dict[str, tuple[Spec, Spec, BiasSpec, Target]] = {
    "XINT8": (_UPOW2, _POW2, _POW2, QUARK_NPU_CNN),
    "A8W8": (_INT8, _INT8, _IN_ACCUMULATOR, QUARK_EXTENDED),
    "A16W8": (
        IntegerSpec(format=IntegerFormat.INT16),
        _INT8,
        _IN_ACCUMULATOR,
        QUARK_EXTENDED,
    ),
    "U8S8_AAWS": (
        _asymmetric(IntegerFormat.UINT8, 99.999),
        _INT8,
        _IN_ACCUMULATOR,
        QUARK_STANDARD,
    ),
    "S8S8_AAWS": (
        _asymmetric(IntegerFormat.INT8, 99.9999),
        _INT8,
        _IN_ACCUMULATOR,
        QUARK_STANDARD,
    ),
    "INT8_CNN_DEFAULT": (
        IntegerSpec(format=IntegerFormat.UINT8, symmetric=False),
        _INT8,
        _IN_ACCUMULATOR,
        QUARK_STANDARD,
    ),
    "BF16": (_BF16, _BF16, _BF16, QUARK_FLOAT),
    "BFP16": (BLOCKS["BFP16"], BLOCKS["BFP16"], BLOCKS["BFP16"], QUARK_BLOCK),
    "MXINT8": (BLOCKS["MXINT8"], BLOCKS["MXINT8"], BLOCKS["MXINT8"], QUARK_BLOCK),
}


@pytest.mark.parametrize("name", _MEANT)
def test_a_preset_means_what_the_goldens_were_made_with(name: str) -> None:
    activation, weight, bias, base = _MEANT[name]

    job = _job(name)

    config = job.config
    assert (config.activation, config.weight, config.bias) == (activation, weight, bias)
    assert (config.equalization, config.head, config.name) == (QuarkCle(), "int8", f"quark {name}")
    fields = ["shares", "data_movement", "fuse", "limits", "transforms", "every_operator"]
    # Without scales there is nothing to align.
    fields += ["align"] if activation.is_integer else []
    for field in fields:
        assert getattr(job.target, field) == getattr(base, field), field
    assert set(base.operators) <= {*job.target.operators, *OPERATORS}


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ("ConvertLeakyReluToDPUVersion", "leaky_relu_slope"),
        ("ConvertSigmoidToHardSigmoid", "sigmoid_to_hardsigmoid"),
        ("ConvertHardSigmoidToDPUVersion", "hardsigmoid_factor"),
        ("ConvertAvgPoolToDPUVersion", "average_pool_factor"),
        ("ConvertReduceMeanToDPUVersion", "reduce_mean_factor"),
    ],
)
def test_arithmetic_is_switched(option: str, gone: str) -> None:
    usual = QUARK_NPU_CNN.arithmetic

    assert set(usual) - set(_job("XINT8", {option: False}).target.arithmetic) == {gone}
    assert _job("A8W8", {option: True}).target.arithmetic == (gone,)
    assert _job("XINT8", {"SimulateDPU": False}).target.arithmetic == ()


@pytest.mark.parametrize(
    ("option", "gone"),
    [
        ("ConvertReduceMeanToGlobalAvgPool", "reduce_mean_to_pool"),
        ("SplitLargeKernelPool", "split_large_pool"),
        ("ConvertSplitToSlice", "split_to_slice"),
        ("ConvertBNToConv", "batchnorm_to_conv"),
    ],
)
def test_rewrites_are_switched(option: str, gone: str) -> None:
    usual = QUARK_EXTENDED.transforms

    assert set(usual) - set(_job("A8W8", {option: False}).target.transforms) == {gone}
    assert _job("U8S8_AAWS", {option: True}).target.transforms == (gone,)
    assert _job("BF16", {"BF16QDQToCast": True}).target.transforms == ()
    skipped = _job("A8W8", {"SkipPreprocess": True})
    assert skipped.target.transforms == ()
    assert skipped.config.equalization is not None  # Quark skips rewrites, not algorithms


def test_alignments_are_switched() -> None:
    def rules(job: Job) -> dict:
        return {op: row.rule for row in job.target.align for op in row.operators}

    assert rules(_job("A8W8")) == {"Concat": "output"}
    every = {f"Align{word}": True for word in ("Pool", "Pad", "Slice", "Transpose", "Reshape")}
    assert rules(_job("A8W8", every)) == {
        "Concat": "output",
        "MaxPool": "input",
        "AveragePool": "input",
        "GlobalAveragePool": "input",
        "Pad": "output",
        "Slice": "input",
        "Transpose": "output",
        "Reshape": "output",
    }
    assert "Pad" not in rules(_job("XINT8", {"AlignPad": False}))
    assert rules(_job("XINT8", {"NPULimitationCheck": False})) == {}


@pytest.mark.parametrize(
    ("option", "fields"),
    [
        ("AdjustShiftRead", {"read"}),
        ("AdjustShiftWrite", {"write_add", "write_mul"}),
        ("AdjustShiftCut", {"cut"}),
        ("AdjustShiftBias", {"bias_high", "bias_width"}),
        (
            "AdjustHardSigmoid",
            {"hardsigmoid_input", "hardsigmoid_output_low", "hardsigmoid_shift"},
        ),
        ("AdjustShiftSwish", {"swish"}),
    ],
)
def test_limits_are_lifted_one_by_one(option: str, fields: set) -> None:
    usual, lifted = _job("XINT8").target.limits, _job("XINT8", {option: False}).target.limits

    changed = {f for f in usual.__struct_fields__ if getattr(usual, f) != getattr(lifted, f)}
    assert changed == fields
    assert _job("XINT8", {"NPULimitationCheck": False}).target.limits is None


def test_pairs_are_fused_as_asked() -> None:
    def fused(job: Job) -> set:
        return {(p, c) for pair in job.target.fuse for p in pair.producers for c in pair.consumers}

    assert ("Conv", "Relu") in fused(_job("A8W8"))
    without = fused(_job("A8W8", {"RemoveQDQConvRelu": False}))
    assert ("Conv", "Relu") not in without
    assert ("Conv", "LeakyRelu") in without
    assert ("Conv", "Gelu") in fused(_job("A8W8", {"RemoveQDQConvGelu": True}))
    assert ("Mul", "Add") in fused(_job("A8W8", {"RemoveQDQMulAdd": True}))
    assert ("Add", "Tanh") in fused(_job("A8W8", {"RemoveQDQBetweenOps": [("Add", "Tanh")]}))
    assert fused(_job("A8W8", {"QDQKeepRemovableActivations": True})) == set()
    folded = {"FoldRelu": True, "ActivationSymmetric": False}
    assert ("Mul", "Relu") in fused(_job("A8W8", folded))
    assert ("Mul", "Relu") not in fused(_job("A8W8"))


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        (CalibrationMethod.MinMax, {}, MinMax()),
        (
            CalibrationMethod.MinMax,
            {"CalibMovingAverage": True},
            MinMax(moving_average="mean"),
        ),
        (
            CalibrationMethod.Percentile,
            {"Percentile": 99.0, "NumBins": 64, "CalibTensorRangeSymmetric": False},
            QuarkPercentile(percentile=99.0, bins=64, symmetric_range=False),
        ),
        (
            CalibrationMethod.Entropy,
            {"NumBins": 256, "NumQuantizedBins": 64},
            QuarkEntropy(bins=256, levels=64),
        ),
        (
            LayerWiseMethod.LayerWisePercentile,
            {"LWPMetric": "mse", "PercentileCandidates": [90.0, 99.0]},
            QuarkLayerwisePercentile(candidates=(90.0, 99.0), metric="mse"),
        ),
        (PowerOfTwoMethod.MinMSE, {"NumBins": 512}, QuarkMinMse(bins=512)),
        (PowerOfTwoMethod.MinMSE, {"UsePowerOf2Scale": False}, MinMse()),
    ],
)
def test_methods_have_their_options(method: Any, options: dict, expected: Any) -> None:
    job = _job(QuantizationConfig(calibrate_method=method), options)

    assert job.config.activation.method == expected


def test_weights_and_biases_have_their_options() -> None:
    mse = {"WeightCalibrateMethod": ExtendedCalibrationMethod.MinMSE}
    assert _job("A8W8", mse).config.weight.method == MinMse()
    assert _job("A8W8", {"QuantizeBias": False}).config.bias is None
    assert _job("A8W8", {"Int32Bias": False}).config.bias == _job("A8W8").config.weight
    assert _job("XINT8", {"Int32Bias": True}).config.bias == AccumulatorBias(
        repair=False, truncate_realigned=True
    )
    assert _job("A8W8", {"Int16Bias": True}).config.bias.format is IntegerFormat.INT16
    assert _job("A8W8", {"AdjustWeightScaleForInt32Bias": True}).config.bias.repair
    assert _job("A8W8", {"WeightsOnly": True}).config.activation is None
    assert _job("U8U8_AAWA").config.weight.symmetric is False
    assert _job("INT8_CNN_DEFAULT", {"UseQDQContribOps": True}).config.domain == "com.microsoft"


def test_equalization_has_its_options() -> None:
    options = {
        "CLESteps": -1,
        "CLEWeightThreshold": 0.25,
        "CLEScaleAppendBias": False,
        "CLEScaleUseThreshold": False,
        "CLETotalLayerDiffThreshold": 1e-3,
        "ReplaceClip6Relu": True,
    }

    assert _job("A8W8", options).config.equalization == QuarkCle(
        steps=-1,
        weight_threshold=0.25,
        append_bias=False,
        use_threshold=False,
        total_layer_diff_threshold=1e-3,
        replace_relu6=True,
    )


def test_block_formats_have_their_attributes() -> None:
    assert _job("BFP16").config.activation == BfpSpec()
    assert _job("MX6").config.weight == BfpSpec(bits=13, block=16, pairs=True)
    assert _job("MXFP8E4M3").config.bias == MxSpec(element=Element.FP8_E4M3)
    older = QuantizationConfig(quant_format=VitisQuantFormat.MXFixNeuron)
    assert _job(older).config.activation == MxSpec(element=Element.INT8, rounding=_away())
    with pytest.raises(QuarkConfigError, match="MXAttributes"):
        _job("MXINT8", {"MXAttributes": {"element_dtype": "int7"}})
    with pytest.raises(NotSupportedError, match="axis 2"):
        _job("BFP16", {"BFPAttributes": {"axis": 2}})


def _away() -> Any:
    from lowbit.numerics.blocks import Rounding

    return Rounding.AWAY


def test_finetuning_has_all_its_parameters() -> None:
    asked = AdaRoundConfig(
        data_size=7,
        batch_size=3,
        num_batches=2,
        num_iterations=11,
        learning_rate=0.5,
        early_stop=True,
        output_index=1,
        lr_adjust=(1.0, 0.25),
        target_op_type=["Conv"],
        selective_update=True,
        update_bias=True,
        output_qdq=True,
        drop_ratio=0.5,
        mem_opt_level=2,
        cache_dir="cache",
        log_period=4,
        ref_model_path="ref.onnx",
        dynamic_batch=True,
        parallel=True,
        reg_param=0.125,
        beta_range=(10, 1),
        warm_start=0.5,
        fixed_seed=5,
        optim_device="cpu",
        infer_device="cpu",
    )

    job = make_job(with_algorithms(get_default_config("A8W8"), [asked]), MODEL, lenient=False)

    assert job.config.refinement == AdaRound(
        data_size=7,
        batch_size=3,
        num_batches=2,
        num_iterations=11,
        learning_rate=0.5,
        early_stop=True,
        output_index=1,
        lr_adjust=(1.0, 0.25),
        target_op_type=("Conv",),
        selective_update=True,
        update_bias=True,
        output_qdq=True,
        drop_ratio=0.5,
        mem_opt_level=2,
        cache_dir="cache",
        log_period=4,
        ref_model_path="ref.onnx",
        dynamic_batch=True,
        parallel=True,
        reg_param=0.125,
        beta_range=(10.0, 1.0),
        warm_start=0.5,
        fixed_seed=5,
        optim_device="cpu",
        infer_device="cpu",
    )


def test_finetuning_by_the_older_switch_has_quarks_defaults() -> None:
    plain = _job("A8W8", include_fast_ft=True).config.refinement
    preset = _job("XINT8_ADAQUANT").config.refinement

    assert plain == AdaRound(update_bias=True)
    assert preset == AdaQuant(
        data_size=1000,
        batch_size=2,
        num_iterations=1000,
        learning_rate=1e-5,
        early_stop=True,
        update_bias=True,
    )


def test_a_dictionary_without_the_switch_finetunes_and_says_so() -> None:
    options = {"FastFinetune": {"OptimAlgorithm": "adaquant", "NumIterations": 9}}

    with pytest.warns(CompatibilityWarning, match="without include_fast_ft"):
        job = _job("A8W8", options)

    assert job.config.refinement == AdaQuant(num_iterations=9, update_bias=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"NumIteration": 5}, "did you mean 'NumIterations'"),
        ({"OptimAlgorithm": "adam"}, "OptimAlgorithm"),
        ({"LRAdjust": [1.0]}, "LRAdjust"),
        ({"BatchSize": "two"}, "BatchSize"),
    ],
)
def test_wrong_parameters_of_finetuning_are_named(given: dict, message: str) -> None:
    with pytest.raises(QuarkConfigError, match=message):
        _job("A8W8", {"FastFinetune": given}, include_fast_ft=True)


def test_rounding_is_refused_where_there_is_nothing_to_round() -> None:
    with pytest.raises(QuarkConfigError, match="take AdaQuant"):
        _job("BF16", include_fast_ft=True)


def test_only_one_way_of_finetuning_is_taken() -> None:
    with pytest.warns(CompatibilityWarning, match="adaround is skipped"):
        config = with_algorithms(
            quiet("A8W8").global_quant_config, [AdaRoundConfig(batch_size=4), AdaRoundConfig()]
        )

    assert config.extra_options["FastFinetune"]["BatchSize"] == 4


def test_all_operators_are_quantized_when_asked_for() -> None:
    assert _job("BF16").target.every_operator
    assert not _job("A8W8").target.every_operator
    assert set(_job("A8W8", {"OpTypesToQuantize": ["Conv"]}).target.operators) == {"Conv"}
    more = _job("A8W8", extra_op_types_to_quantize=["Flatten"]).target.operators
    assert "Flatten" in more
    assert _job("INT8_TRANSFORMER_DEFAULT").target.operators == ("Gemm", "MatMul")


def test_smoothquant_is_quarks_by_field_and_by_algorithm() -> None:
    asked = with_algorithms(get_default_config("A8W8"), [SmoothQuantConfig(alpha=0.7)])

    assert _job("A8W8").config.smooth_quant is None
    assert _job("A8W8", include_sq=True).config.smooth_quant == QuarkSmoothQuant(alpha=0.5)
    assert _job(
        "A8W8", {"SmoothAlpha": 0.6}, include_sq=True
    ).config.smooth_quant == QuarkSmoothQuant(alpha=0.6)
    assert _job(asked).config.smooth_quant == QuarkSmoothQuant(alpha=0.7)


def _detector_head() -> onnx.ModelProto:
    """Return boxes and scores of very different ranges in one output, as YOLO has them."""
    rng = np.random.default_rng(5)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.normal(size=shape) * 0.4).astype(np.float32), name)

    constants = [
        weight("wb", 4, 3, 3, 3),
        weight("bb", 4),
        weight("ws", 2, 3, 3, 3),
        weight("bs", 2),
    ]
    constants.append(numpy_helper.from_array(np.array(64, np.float32), "stride"))
    nodes = [
        helper.make_node("Conv", ["x", "wb", "bb"], ["b"], "boxes", pads=[1] * 4),
        helper.make_node("Relu", ["b"], ["br"], "relu"),
        helper.make_node("Mul", ["br", "stride"], ["bm"], "decode"),
        helper.make_node("Conv", ["x", "ws", "bs"], ["s"], "scores", pads=[1] * 4),
        helper.make_node("Sigmoid", ["s"], ["ss"], "sigmoid"),
        helper.make_node("Concat", ["bm", "ss"], ["y"], "join", axis=1),
    ]
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 8, 8])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 6, 8, 8])]
    graph = helper.make_graph(nodes, "head", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_boxes_keep_their_scale_beside_scores_of_a_hard_sigmoid() -> None:
    noise = np.random.default_rng(6).normal(size=(4, 1, 3, 8, 8)).astype(np.float32)
    reader = ListReader([{"x": sample} for sample in noise])

    # It is Quark's model all the same: scores are lost beside boxes, and that is said.
    with pytest.warns(CompatibilityWarning, match=r"model is ruined: y\[:, 4:6\]"):
        model = ModelQuantizer(quiet("XINT8")).quantize_model(_detector_head(), None, reader)

    scales = {
        t.name.removesuffix("_scale").removesuffix("_quantized"): float(numpy_helper.to_array(t))
        for t in model.graph.initializer
        if t.name.endswith("_scale")
    }
    # The scales that Quark 0.13 gives for the same model and data.
    expected = {"x": 2**-5, "s": 2**-4, "br": 2**-4, "ss": 2**-7, "bm": 4, "y": 4}
    expected |= {"bb": 2**-7, "bs": 2**-8, "stride": 1, "wb": 2**-7, "ws": 2**-7}
    assert scales == expected
