"""``ModelQuantizer`` as scripts use it: what it writes, what it takes, and how it fails."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quark_cases import DATA, samples
from helpers.quark_helpers import BareReader, ListReader, quiet
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.quark.errors import CompatibilityWarning
from lowbit.quark.onnx import (
    BiasCorrectionConfig,
    CalibMethod,
    CLEConfig,
    Config,
    ExtendedQuantType,
    Int4Spec,
    Int8Spec,
    Int16Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QuantGranularity,
    QuantizationConfig,
    QuantType,
    RandomDataReader,
    UInt8Spec,
    XInt8Spec,
    quantize_dynamic,
    quantize_static,
)

_INT8 = QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec())


def _sqnr(model: onnx.ModelProto | str, reference: onnx.ModelProto | None = None) -> float:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL

    def run(source: Any) -> np.ndarray:
        data = source if isinstance(source, str) else source.SerializeToString()
        session = ort.InferenceSession(data, options)
        return np.concatenate([session.run(None, feed)[0] for feed in small_feeds(6)])

    want, got = run(reference or small_cnn()), run(model)
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


def _quantize(config: Config | QConfig, **more: Any) -> onnx.ModelProto:
    model = ModelQuantizer(config).quantize_model(
        small_cnn(), calibration_data_reader=BareReader(small_feeds(6)), **more
    )
    assert model is not None
    onnx.checker.check_model(model, full_check=True)
    return model


def _formats(model: onnx.ModelProto) -> dict[str, str]:
    """Return the integer type that each activation is quantized to."""
    types = {t.name: onnx.TensorProto.DataType.Name(t.data_type) for t in model.graph.initializer}
    quantizers = (node for node in model.graph.node if node.op_type == "QuantizeLinear")
    return {n.input[0].removesuffix("_QuantizeLinear_Input"): types[n.input[2]] for n in quantizers}


def _q(**options: Any) -> QConfig:
    return QConfig(_INT8, extra_options={"PrintSummary": False, **options})


def test_a_path_is_written_and_nothing_returned(tmp_path: pathlib.Path, model_path) -> None:
    out = tmp_path / "quantized.onnx"

    returned = ModelQuantizer(quiet("A8W8")).quantize_model(
        model_input=str(model_path),
        model_output=str(out),
        calibration_data_reader=ListReader(small_feeds(6)),
    )

    assert returned is None
    assert _sqnr(str(out)) > 20


def test_weights_go_beside_the_model_when_asked_for(tmp_path: pathlib.Path, model_path) -> None:
    out = tmp_path / "quantized.onnx"

    ModelQuantizer(quiet("A8W8", use_external_data_format=True)).quantize_model(
        model_path, out, BareReader(small_feeds(6))
    )

    assert (tmp_path / "quantized.onnx.data").exists()
    assert _sqnr(str(out)) > 20


def test_a_summary_is_printed_unless_told_not_to(capsys: pytest.CaptureFixture) -> None:
    config = Config(QuantizationConfig())
    ModelQuantizer(config).quantize_model(small_cnn(), None, BareReader(small_feeds(3)))

    assert "quark" in capsys.readouterr().out
    _quantize(quiet(QuantizationConfig()))
    assert capsys.readouterr().out == ""


def test_metrics_are_printed_when_asked_for(capsys: pytest.CaptureFixture) -> None:
    _quantize(_q(EvalMetrics=True, EvalDataReader=BareReader(small_feeds(3))))

    printed = capsys.readouterr().out
    assert "logits" in printed
    assert "on 3 samples" in printed


def test_a_folder_of_arrays_serves_as_data(tmp_path: pathlib.Path) -> None:
    for index, feed in enumerate(small_feeds(6)):
        np.save(tmp_path / f"{index}.npy", feed["input"])

    model = ModelQuantizer(quiet("A8W8")).quantize_model(
        small_cnn(), calibration_data_path=str(tmp_path)
    )

    assert model == _quantize(quiet("A8W8")) or _sqnr(model) > 20


@pytest.mark.parametrize("preset", ["XINT8", "A8W8", "U8U8_AAWA", "S16S8_ASWS", "U16S8_AAWS"])
def test_random_data_is_used_when_asked_for(preset: str) -> None:
    config = quiet(preset)
    config.global_quant_config.extra_options["UseRandomData"] = True

    model = ModelQuantizer(config).quantize_model(small_cnn(), calibration_data_reader=None)

    assert model is not None
    assert any(node.op_type == "QuantizeLinear" for node in model.graph.node)


@pytest.mark.parametrize("reader", [True, False])
def test_what_is_calibrated_on_random_data_is_doubted(
    reader: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config = quiet("XINT8")
    config.global_quant_config.print_summary = True
    config.global_quant_config.extra_options["UseRandomData"] = not reader
    given = RandomDataReader(small_cnn()) if reader else None

    ModelQuantizer(config).quantize_model(small_cnn(), calibration_data_reader=given)

    assert "calibrated on random data" in capsys.readouterr().out
    given = ListReader(small_feeds(2))
    config.global_quant_config.extra_options["UseRandomData"] = False

    ModelQuantizer(config).quantize_model(small_cnn(), calibration_data_reader=given)

    assert "random data" not in capsys.readouterr().out


def test_calib_data_size_takes_the_first_samples() -> None:
    config = quiet("A8W8")
    config.global_quant_config.extra_options["CalibDataSize"] = 2
    few = ModelQuantizer(config).quantize_model(small_cnn(), None, BareReader(small_feeds(6)))

    same = ModelQuantizer(quiet("A8W8")).quantize_model(
        small_cnn(), None, BareReader(small_feeds(2))
    )

    assert [t for t in few.graph.initializer] == [t for t in same.graph.initializer]  # noqa: C416


def test_algorithms_can_be_given_to_the_older_configuration() -> None:
    def weights(config: Config, *algorithms: CLEConfig) -> list[onnx.TensorProto]:
        reader = BareReader(samples("calib.npz"))
        quantizer = ModelQuantizer(config)
        model = quantizer.quantize_model(
            DATA / "float.onnx", None, reader, algorithms=list(algorithms)
        )
        return list(model.graph.initializer)

    without, with_it = quiet(QuantizationConfig(include_cle=False)), quiet(QuantizationConfig())

    assert weights(without, CLEConfig()) == weights(with_it)
    assert weights(without) != weights(with_it)


def test_bias_correction_helps() -> None:
    layer = QLayerConfig(input_tensors=Int16Spec(), weight=Int4Spec())
    options = {"PrintSummary": False}
    plain = _quantize(QConfig(layer, extra_options=options))

    corrected = _quantize(
        QConfig(layer, algo_config=[BiasCorrectionConfig()], extra_options=options)
    )

    assert _sqnr(corrected) > _sqnr(plain)


def test_nodes_stay_in_float_by_name_type_and_subgraph() -> None:
    by_name = _quantize(quiet("A8W8", nodes_to_exclude=["conv1", "^add.*"]))
    by_graph = _quantize(quiet("A8W8", subgraphs_to_exclude=[(["conv2"], ["pool"])]))
    by_type = QConfig(_INT8, layer_type_config={None: ["Gemm"]}, exclude=["add1"])
    by_type.extra_options["PrintSummary"] = False

    assert _reads_floats(by_name, "Conv", 0)
    assert [_reads_floats(by_graph, "Conv", i) for i in (0, 1)] == [False, True]
    assert _reads_floats(_quantize(by_type), "Gemm", 0)


def _reads_floats(model: onnx.ModelProto, kind: str, number: int) -> bool:
    dequantized = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    node = [n for n in model.graph.node if n.op_type == kind][number]
    return not any(name in dequantized for name in node.input[1:2])


def test_what_lies_outside_input_and_output_nodes_stays_in_float() -> None:
    model = _quantize(quiet("A8W8", input_nodes=["conv2"], output_nodes=["add1"]))

    assert [_reads_floats(model, "Conv", i) for i in (0, 1)] == [True, False]
    assert _reads_floats(model, "Gemm", 0)


def test_only_named_nodes_or_types_are_quantized() -> None:
    named = _quantize(quiet("A8W8", nodes_to_quantize=["fc"]))
    typed = _quantize(quiet("A8W8", op_types_to_quantize=["Gemm"]))

    assert sorted(_formats(named)) == sorted(_formats(typed)) == ["f1", "logits"]


def test_layers_can_have_formats_of_their_own() -> None:
    wide = QLayerConfig(input_tensors=Int16Spec(), output_tensors=Int16Spec())
    config = _q()
    config.specific_layer_config = {wide: ["fc"]}

    formats = _formats(_quantize(config))

    assert (formats["f1"], formats["logits"], formats["input"]) == ("INT16", "INT16", "INT8")


def test_tensors_can_have_formats_and_ranges_of_their_own() -> None:
    overrides = {"f1": [{"quant_type": ExtendedQuantType.QInt16, "rmin": -8.0, "rmax": 8.0}]}

    model = _quantize(_q(TensorQuantOverrides=overrides))

    scales = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    assert _formats(model)["f1"] == "INT16"
    assert scales["f1_scale"] == pytest.approx(8 / 32767)


def test_mixed_precision_by_the_older_option() -> None:
    options = {"MixedPrecisionTensor": {ExtendedQuantType.QInt16: ["f1"]}}
    config = quiet(QuantizationConfig(specific_tensor_precision=True, extra_options=options))

    assert _formats(_quantize(config))["f1"] == "INT16"


def test_outputs_of_some_operators_stay_in_float() -> None:
    model = _quantize(_q(OpTypesToExcludeOutputQuantization=["Gemm"]))

    assert "logits" not in _formats(model)
    assert "f1" in _formats(model)


def test_channels_last_is_put_around_the_model() -> None:
    reader = BareReader(small_feeds(4))

    model = ModelQuantizer(quiet("A8W8", convert_nchw_to_nhwc=True)).quantize_model(
        small_cnn(), None, reader
    )

    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:]
    assert shape == [32, 32, 3]
    session = ort.InferenceSession(model.SerializeToString())
    feed = {"input": np.transpose(small_feeds(1)[0]["input"], (0, 2, 3, 1))}
    plain = ort.InferenceSession(_quantize(quiet("A8W8")).SerializeToString())
    want = plain.run(None, small_feeds(1)[0])[0]
    np.testing.assert_allclose(session.run(None, feed)[0], want, atol=0.3)


def test_shapes_and_operator_sets_are_changed_first() -> None:
    model = _quantize(_q(FixShapes="input:[1,3,32,32]", ConvertOpsetVersion=18))

    assert [o.version for o in model.opset_import if o.domain == ""] == [18]
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_value for d in dims] == [1, 3, 32, 32]


def test_dynamic_quantization_needs_no_data(tmp_path: pathlib.Path, model_path) -> None:
    preset = ModelQuantizer(quiet("UINT8_DYNAMIC_QUANT")).quantize_model(small_cnn())
    quantize_dynamic(model_path, tmp_path / "d.onnx", weight_type=QuantType.QUInt8)

    assert {"ConvInteger", "MatMulInteger"} & {n.op_type for n in preset.graph.node}
    assert _sqnr(str(tmp_path / "d.onnx")) == pytest.approx(_sqnr(preset))
    assert _sqnr(preset) > 15


def test_weights_of_products_in_blocks_of_four_bits() -> None:
    x = onnx.helper.make_tensor_value_info("x", 1, [2, 256])
    y = onnx.helper.make_tensor_value_info("y", 1, [2, 8])
    weight = np.random.default_rng(0).normal(size=(256, 8)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "g",
        [x],
        [y],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    source = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])

    model = ModelQuantizer(quiet("MATMUL_NBITS")).quantize_model(source)

    (node,) = model.graph.node
    assert (node.op_type, node.domain) == ("MatMulNBits", "com.microsoft")
    sizes = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    assert (sizes["bits"], sizes["block_size"]) == (4, 128)


def test_quantize_static_is_the_same_without_an_object() -> None:
    model = quantize_static(
        small_cnn(),
        None,
        BareReader(small_feeds(6)),
        print_summary=False,
        per_channel=True,
        extra_options={"ActivationSymmetric": True},
    )

    config = QuantizationConfig(per_channel=True, extra_options={"ActivationSymmetric": True})
    assert model.graph.initializer == _quantize(quiet(config)).graph.initializer


def test_a_stack_of_per_channel_power_of_two_and_unsigned_specs_runs() -> None:
    for inputs, weight in (
        (UInt8Spec(), Int8Spec(quant_granularity=QuantGranularity.Channel)),
        (XInt8Spec(calibration_method=CalibMethod.MinMax), XInt8Spec()),
        (Int8Spec(calibration_method=CalibMethod.LayerwisePercentile), Int8Spec()),
        (Int8Spec(calibration_method=CalibMethod.Entropy), Int8Spec()),
        (Int8Spec(calibration_method=CalibMethod.Distribution), Int8Spec()),
        (Int8Spec(), Int8Spec(calibration_method=CalibMethod.MinMSE)),
    ):
        config = QConfig(QLayerConfig(input_tensors=inputs, weight=weight))
        config.extra_options["PrintSummary"] = False
        assert _sqnr(_quantize(config)) > 10


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        (quiet("XINT8", extra_options={}), ValueError, "set ActivationSymmetric to True"),
        (quiet("A8W8", nodes_to_exclude=["^zz.*"]), ValueError, "no node matches '.zz"),
        (_q(Percentil=1.0, IgnoreWarnings=False), ValueError, "did you mean 'Percentile'"),
        (QConfig(QLayerConfig(weight=Int8Spec())), ValueError, "needs input_tensors"),
    ],
)
def test_what_cannot_be_done_is_an_error(config: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        _quantize(config)

    assert isinstance(caught.value, lowbit.LowbitError)


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (BareReader([]), "returned None at once|gave no sample"),
        (BareReader([{"wrong": np.zeros((1, 3, 32, 32), np.float32)}]), "wrong"),
        (BareReader([{"input": np.zeros((1, 4, 32, 32), np.float32)}]), "input"),
        (None, "nothing to calibrate on"),
    ],
)
def test_bad_data_is_an_error_not_a_missing_file(
    tmp_path: pathlib.Path, reader: Any, message: str
) -> None:
    out = tmp_path / "out.onnx"

    with pytest.raises(lowbit.DataError, match=message):
        ModelQuantizer(quiet("A8W8")).quantize_model(small_cnn(), out, reader)

    assert not out.exists()


def test_a_missing_model_is_a_file_not_found_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"no such model: nowhere\.onnx"):
        ModelQuantizer(quiet("A8W8")).quantize_model("nowhere.onnx", None, None)


@pytest.mark.parametrize("config", ["A8W8", None, {"preset": "A8W8"}])
def test_only_configurations_are_taken(config: Any) -> None:
    with pytest.raises(ValueError, match="ModelQuantizer takes"):
        ModelQuantizer(config)


@pytest.mark.parametrize("option", [{"MatMulToGemm": True}, {"NodesToExclude": ["fc"]}])
def test_options_that_quark_has_not_are_ignored_with_a_word(option: dict) -> None:
    with pytest.warns(CompatibilityWarning, match=next(iter(option))):
        model = _quantize(_q(**option))

    assert model.graph.initializer == _quantize(_q()).graph.initializer


def test_an_unknown_node_is_said_with_the_nearest_name() -> None:
    config = quiet("A8W8", nodes_to_exclude=["conv11"])

    with pytest.warns(CompatibilityWarning, match="'conv11'.*did you mean 'conv1'"):
        _quantize(config)

    config.global_quant_config.ignore_warnings = False
    with pytest.raises(ValueError, match="did you mean 'conv1'"):
        _quantize(config)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", [ExtendedQuantType.QInt32, ExtendedQuantType.QUInt32])
def test_tensors_of_32_bits_compute_as_in_float(kind: ExtendedQuantType, per_channel: bool) -> None:
    config = quiet(
        "A8W8", include_cle=False, activation_type=kind, weight_type=kind, per_channel=per_channel
    )

    model = _quantize(config)

    # 24 bits is what float32 itself has.
    assert _sqnr(model) > 120
    quantizers = {n.op_type for n in model.graph.node if "Quant" in n.op_type}
    assert "ExtendedQuantizeLinear" in quantizers


def test_32_bit_weights_stand_beside_8_bit_activations() -> None:
    model = _quantize(quiet("A8W8", include_cle=False, weight_type=ExtendedQuantType.QInt32))

    assert _sqnr(model) > _sqnr(_quantize(quiet("A8W8", include_cle=False)))
