"""Automatic mixed precision through Quark's names, against what Quark 0.13 itself measured."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.quark_cases import DATA, differences, outputs_of, read_quantized, samples
from helpers.quark_helpers import ListReader, quiet

from lowbit.api.quantize import Result, quantize
from lowbit.config.mixed_precision import MixedPrecision
from lowbit.config.specs import BLOCKS, AccumulatorBias, IntegerSpec
from lowbit.graph import io
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import CompatibilityWarning, QuarkConfigError
from lowbit.quark.onnx import (
    AutoMixprecisionConfig,
    BFloat16Spec,
    BFP16Spec,
    Int8,
    Int8Spec,
    Int16Spec,
    Int32Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    QuantType,
    XInt8Spec,
)
from lowbit.quark.onnx.quantization.config import get_default_config
from lowbit.quark.translate.job import Job, make_job
from lowbit.quark.translate.qconfig import with_algorithms

pytestmark = pytest.mark.filterwarnings("ignore:DedicateDQNode")
FLOAT = DATA / "float.onnx"
_INT8 = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())


def _job(base: str, *algorithms: Any, **changes: Any) -> Job:
    config = dataclasses.replace(get_default_config(base), include_cle=False, **changes)
    return make_job(with_algorithms(config, algorithms), io.load(FLOAT), lenient=False)


def _mixing(base: str = "A16W8", **parameters: Any) -> MixedPrecision:
    parameters = {"target_layer_config": _INT8, **parameters}
    mix = _job(base, AutoMixprecisionConfig(**parameters)).config.mixed_precision
    assert mix is not None
    return mix


def _run(job: Job) -> Result:
    return quantize(
        io.load(FLOAT),
        data=samples("calib.npz"),
        config=job.config,
        target=job.target,
        metric=job.metric,
    )


# What Quark 0.13 printed for these presets on the golden network, without equalization.
_MEASURED = {
    "S16S16_MIXED_S8S8": (
        0.0248,
        "pwconv .1236 conv1 .2524 dwconv .3075 fc .4319 dwconv2 .4687 pwconv2 .5710 conv2 .8311",
    ),
    "BF16_MIXED_BFP16": (0.1206, "pwconv2 .1069"),
    "BF16_MIXED_MXINT8": (0.1206, "dwconv2 .1117"),
}


@pytest.mark.parametrize("preset", _MEASURED)
def test_layers_are_measured_as_quark_does(preset: str) -> None:
    result = _run(_job(preset))

    assert result.mixed_precision is not None
    baseline, words = _MEASURED[preset]
    assert result.mixed_precision.baseline == pytest.approx(baseline, abs=6e-5)
    theirs = list(zip(words.split()[::2], map(float, words.split()[1::2]), strict=True))
    ours = [(row.name, row.score) for row in result.mixed_precision.layers][: len(theirs)]
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    # Quark rounds weights of 16 bits to 8; a few fall to the other side.
    exact = 0.03 if preset.startswith("S16") else 5e-4
    np.testing.assert_allclose([s for _, s in ours], [s for _, s in theirs], rtol=exact)
    assert len(result.mixed_precision.changed) == 7


@pytest.mark.parametrize("preset", ["BF16_MIXED_BFP16", "BF16_MIXED_MXINT8"])
def test_the_outputs_are_quarks(preset: str) -> None:
    """Two pairs where formats meet, in Quark's order, to the last bit."""
    model = ModelQuantizer(quiet(preset, include_cle=False)).quantize_model(
        FLOAT, None, ListReader(samples("calib.npz"))
    )
    assert model is not None
    onnx.checker.check_model(model)
    with np.load(DATA / "outputs_mixed.npz") as stored:
        want = stored[preset.lower()]
    np.testing.assert_array_equal(outputs_of(model, "test_input.npz")["output"], want)


def test_scales_are_quarks_and_weights_are_rounded_once() -> None:
    model = ModelQuantizer(quiet("S16S16_MIXED_S8S8", include_cle=False)).quantize_model(
        FLOAT, None, ListReader(samples("calib.npz"))
    )
    assert model is not None
    ours = read_quantized(model)
    theirs = read_quantized(onnx.load(DATA / "s16s16_mixed_nocle.onnx"))
    assert differences(ours.activations, theirs.activations) == set()
    assert ours.constants.keys() == theirs.constants.keys()
    moved = total = 0
    for key, (codes, scale, zero) in ours.constants.items():
        their_codes, their_scale, their_zero = theirs.constants[key]
        np.testing.assert_array_equal(scale, their_scale)
        np.testing.assert_array_equal(zero, their_zero)
        difference = np.abs(codes.astype(int) - their_codes)
        assert difference.max() <= 1
        moved, total = moved + int(difference.sum()), total + codes.size
    assert 0 < moved < 0.002 * total


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"target_op_type": ["Conv"]}, "op_types", ("Conv",)),
        ({"include_layers": ["fc"]}, "include", ("fc",)),
        ({"exclude_layers": ["fc"]}, "exclude", ("fc",)),
        ({"data_size": 3}, "data_size", 3),
        ({"data_size": 0}, "data_size", None),
        ({"metric_output_index": 0}, "output", 0),
        ({"metric_default": "cosine"}, "metric", "cosine"),
        ({"metric_threshold": 0.5}, "threshold", 0.5),
        ({"metric_threshold": None}, "threshold", None),
        ({"metric_optimize_object": "quality"}, "objective", "quality"),
        ({"sensitivity_cache_file": "s.json"}, "cache", "s.json"),
        ({"worker_num": 2}, "workers", 2),
        ({"dual_quant_nodes": True}, "requantize", True),
        ({"no_input_qdq_shared": True}, "unshared_inputs", True),
        ({"shared_param_mode": "unshare"}, "sharing", "unshare"),
    ],
)
def test_every_parameter_goes_where_it_is_read(given: dict, field: str, value: Any) -> None:
    assert getattr(_mixing(**given), field) == value


def test_layers_of_the_target() -> None:
    (option,) = _mixing().options
    assert isinstance(option.inputs, IntegerSpec)
    assert isinstance(option.weight, IntegerSpec)
    assert (option.inputs.format, option.weight.format) == (IntegerFormat.INT8, IntegerFormat.INT8)
    assert option.bias is None
    full = QLayerConfig(
        input_tensors=Int8Spec(),
        weight=BFP16Spec(),
        bias=Int32Spec(),
        output_tensors=Int16Spec(),
    )
    (option,) = _mixing(target_layer_config=full).options
    assert option.weight == BLOCKS["BFP16"]
    assert isinstance(option.bias, AccumulatorBias)
    assert isinstance(option.outputs, IntegerSpec)
    assert option.outputs.format is IntegerFormat.INT16
    several = _mixing(target_layer_config=[_INT8, full]).options
    assert len(several) == 2
    named = _mixing(target_layer_config={_INT8: ["fc"], full: []}).options
    assert [o.layers for o in named] == [("fc",), ()]
    plain = _job(
        "A16W8",
        include_auto_mp=True,
        extra_options={
            "ActivationSymmetric": True,
            "AutoMixprecision": {"TargetLayerConfig": _INT8.to_dict()},
        },
    )
    assert plain.config.mixed_precision is not None
    assert plain.config.mixed_precision.options == _mixing().options


def test_options_say_what_is_symmetric() -> None:
    (option,) = _mixing("S16S16_MIXED_S8S8").options
    assert isinstance(option.inputs, IntegerSpec)
    assert isinstance(option.weight, IntegerSpec)
    assert (option.inputs.symmetric, option.weight.symmetric) == (False, True)


def test_subgraphs_are_read_from_their_file(tmp_path: Any) -> None:
    path = tmp_path / "parts.json"
    part = {"name": "front", "start_nodes": ["conv1"], "end_nodes": ["pwconv"]}
    path.write_text(json.dumps({"num_subgraphs": 1, "subgraphs": [part]}))
    result = _run(_job("A16W8", AutoMixprecisionConfig(_INT8, subgraph_json=path)))
    assert result.mixed_precision is not None
    groups = {row.name: set(row.nodes) for row in result.mixed_precision.layers}
    assert groups == {
        "front": {"conv1", "dwconv", "pwconv"},
        "__ungrouped__": {"conv2", "dwconv2", "pwconv2", "fc"},
    }
    path.write_text(json.dumps({"num_subgraphs": 2, "subgraphs": [part]}))
    with pytest.raises(QuarkConfigError, match="num_subgraphs is 2"):
        _mixing(subgraph_json=path)
    with pytest.raises(QuarkConfigError, match="No such file"):
        _mixing(subgraph_json=tmp_path / "none.json")


def test_functions_that_measure() -> None:
    seen: list[int] = []

    def distance(want: Any, got: Any) -> float:
        seen.append(len(want))
        return float(np.abs(want[0][0] - got[0][0]).sum())

    def accuracy(outputs: Any) -> float:
        return float(np.mean([sample[0].max() for sample in outputs]))

    def old_accuracy(outputs: np.ndarray) -> float:
        assert outputs.shape == (2, 10)
        return float(outputs.max(axis=1).mean())

    near = _run(
        _job("A16W8", AutoMixprecisionConfig(_INT8, metric_distance_fn=distance, data_size=2))
    )
    assert near.mixed_precision is not None
    assert set(seen) == {2}
    good = _run(
        _job("A16W8", AutoMixprecisionConfig(_INT8, metric_evaluate_fn=accuracy, data_size=2))
    )
    old = {
        "ActTargetQuantType": QuantType.QInt8,
        "WeightTargetQuantType": QuantType.QInt8,
        "EvaluateFunction": old_accuracy,
        "Top1AccTarget": 1e9,
        "DataSize": 2,
        "OutputIndex": 0,
    }
    options = {**get_default_config("A16W8").extra_options, "AutoMixprecision": old}
    like = _run(_job("A16W8", include_auto_mp=True, extra_options=options))
    assert good.mixed_precision is not None
    assert like.mixed_precision is not None
    assert like.mixed_precision.baseline == pytest.approx(good.mixed_precision.baseline, rel=1e-5)
    assert len(like.mixed_precision.changed) == 7
    with pytest.raises(QuarkConfigError, match="not several"):
        _mixing(metric_distance_fn=distance, metric_evaluate_fn=accuracy)


def test_names_of_earlier_versions() -> None:
    def mixing(**given: Any) -> MixedPrecision:
        kinds = {"ActTargetQuantType": QuantType.QInt8, "WeightTargetQuantType": QuantType.QInt8}
        options = {"ActivationSymmetric": True, "AutoMixprecision": {**kinds, **given}}
        mix = _job("A16W8", include_auto_mp=True, extra_options=options).config.mixed_precision
        assert mix is not None
        return mix

    assert mixing().options == _mixing().options
    assert mixing(L2Target=0.25).threshold == 0.25
    assert mixing(NumTarget=3).most == 3
    assert mixing(TargetIndices=[0, 2]).ranks == (0, 2)
    assert mixing(ExcludeIndices=[1]).not_ranks == (1,)
    assert mixing(TargetTensors=["fc"]).include == ("fc",)
    older = AutoMixprecisionConfig(
        l2_target=0.25, act_target_quant_type=Int8, weight_target_quant_type=Int8, num_target=3
    )
    asked = _job("A16W8", older).config.mixed_precision
    assert asked is not None
    assert (asked.options, asked.threshold, asked.most) == (_mixing().options, 0.25, 3)
    bias = mixing(BiasTargetQuantType=QuantType.QInt8).options[0].bias
    assert isinstance(bias, IntegerSpec)
    assert bias.format is IntegerFormat.INT8
    with pytest.raises(QuarkConfigError, match="needs an EvaluateFunction"):
        mixing(Top1AccTarget=0.1)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(QuarkConfigError, match="needs a TargetLayerConfig"):
        _job("A16W8", include_auto_mp=True)
    options = {"AutoMixprecision": {"TargetLayerConfig": _INT8, "MetricTreshold": 1}}
    with pytest.raises(QuarkConfigError, match="did you mean 'MetricThreshold'"):
        _job("A16W8", include_auto_mp=True, extra_options=options)
    options["AutoMixprecision"].pop("MetricTreshold")
    with pytest.warns(CompatibilityWarning, match="without include_auto_mp"):
        _job("A16W8", extra_options=options)


def _boundary(common: QTensorConfig, own: QTensorConfig, **options: Any) -> onnx.ModelProto:
    layer = QLayerConfig(input_tensors=own, weight=own if isinstance(own, BFloat16Spec) else None)
    config = QConfig(
        QLayerConfig(input_tensors=common, weight=common),
        specific_layer_config={layer: ["pwconv2"]},
        extra_options={"EnableDualQuantNodePairs": True, "PrintSummary": False, **options},
    )
    feeds = [dict(feed) for feed in samples("calib.npz")]
    model = ModelQuantizer(config).quantize_model(onnx.load(FLOAT), None, ListReader(feeds))
    onnx.checker.check_model(model)
    return model


def _pairs(model: onnx.ModelProto, start: str, end: str) -> list[tuple[str, float | None]]:
    """Return the type and scale of each quantizer on the way from one tensor to a node."""
    constants = {t.name: t for t in model.graph.initializer}
    producers = {name: node for node in model.graph.node for name in node.output}
    node = next(n for n in model.graph.node if n.name == end)
    found = []
    while node.input[0] != start:
        node = producers[node.input[0]]
        if node.op_type.endswith("QuantizeLinear") and "Dequantize" not in node.op_type:
            point, scale = (constants[name] for name in (node.input[2], node.input[1]))
            kind = onnx.TensorProto.DataType.Name(point.data_type)
            found.append((kind, float(onnx.numpy_helper.to_array(scale))))
    return found[::-1]


def test_layers_in_a_format_of_their_own_have_two_pairs_at_each_boundary() -> None:
    # Types and scales are those of Quark 0.13 on the same model and data.
    model = _boundary(XInt8Spec(), BFloat16Spec())

    assert _pairs(model, "relu3_out", "pwconv2") == [("INT8", 1.0), ("BFLOAT16", 1.0)]
    assert _pairs(model, "pwconv2_out", "relu4") == [("BFLOAT16", 1.0), ("INT8", 2.0)]
    assert _pairs(model, "dwconv2_out", "relu3") == [("INT8", 1.0)]
    model = _boundary(Int8Spec(), Int16Spec())
    wide = [("INT8", pytest.approx(1.3141522)), ("INT16", pytest.approx(0.005093458))]
    assert _pairs(model, "relu3_out", "pwconv2") == wide


def test_amds_mixed_configuration_of_npu_integers_and_casts_runs() -> None:
    model = _boundary(XInt8Spec(), BFloat16Spec(), BF16QDQToCast=True, Int32Bias=False)

    casts = [node for node in model.graph.node if node.op_type == "Cast"]
    assert len(casts) >= 4
    assert not any(node.domain == "com.amd.quark" for node in model.graph.node)
