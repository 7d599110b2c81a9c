"""Ways to use Quark that public scripts have; none of them ran here at first."""

from __future__ import annotations

import pathlib
from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from helpers.quark_helpers import BareReader, quiet, run_python
from helpers.small_models import small_cnn, small_feeds
from onnx import numpy_helper
from onnxruntime.quantization.quant_utils import QuantType

from lowbit.quark.errors import CompatibilityWarning, QuarkConfigError
from lowbit.quark.onnx import (
    AutoSearch,
    CalibMethod,
    Config,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QuantizationConfig,
    RandomDataReader,
    XInt8Spec,
)
from lowbit.quark.onnx.quantization.config import get_default_config


def _quantized(config: Config | QConfig | QuantizationConfig) -> onnx.ModelProto:
    made = ModelQuantizer(config).quantize_model(
        small_cnn(16), calibration_data_reader=BareReader(small_feeds(3, 16))
    )
    assert made is not None
    return made


def _scales(model: onnx.ModelProto) -> list[float]:
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [
        float(np.max(stored[node.input[1]]))
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    ]


def _operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(f"{node.domain}:{node.op_type}" for node in model.graph.node)


@pytest.mark.parametrize("preset", ["A8W8", "A16W8", "BF16"])
def test_the_npu_flag_beside_scales_that_are_no_powers_of_two(preset: str) -> None:
    """RyzenAI-SW's script sets the flag for every preset; Quark 0.13 writes the same Q/DQ."""
    plain, flagged = (
        _quantized(quiet(preset, {"BF16QDQToCast": preset == "BF16"}, enable_npu_cnn=flag))
        for flag in (False, True)
    )

    assert _operators(flagged) == _operators(plain)
    assert _scales(flagged) == _scales(plain)


def test_the_npu_flag_keeps_the_npu_flow_for_powers_of_two() -> None:
    scales = _scales(_quantized(quiet("XINT8")))

    assert all(np.log2(scale) % 1 == 0 for scale in scales)


@pytest.mark.parametrize("method", [CalibMethod.Percentile, CalibMethod.Entropy])
def test_the_method_wins_over_the_type_of_scale(method: CalibMethod) -> None:
    config = QConfig(
        global_config=QLayerConfig(
            input_tensors=XInt8Spec(calibration_method=method), weight=XInt8Spec()
        ),
        extra_options={"PrintSummary": False},
    )

    with pytest.warns(CompatibilityWarning, match=f"{method.name} gives scales that are no powers"):
        scales = _scales(_quantized(config))

    assert any(np.log2(scale) % 1 for scale in scales)


def test_a_configuration_without_its_wrapper() -> None:
    wrapped = quiet("XINT8")

    assert _quantized(wrapped.global_quant_config) == _quantized(wrapped)


@pytest.mark.parametrize("key", ["optim_device", "infer_device"])
def test_without_a_gpu_finetuning_runs_on_the_processor(key: str) -> None:
    tune = {"DataSize": 2, "NumIterations": 2, "OptimAlgorithm": "adaquant"}
    config = quiet("A8W8", {"FastFinetune": {**tune, _pascal(key): "cuda:0"}}, include_fast_ft=True)

    with pytest.warns(CompatibilityWarning, match=f"runs on the processor: .*{key}='cpu'"):
        _quantized(config)


def _pascal(key: str) -> str:
    return "".join(part.capitalize() for part in key.split("_"))


def test_one_shape_for_a_model_of_one_input() -> None:
    feed = RandomDataReader(small_cnn(), [2, 3, 32, 32]).get_next()

    assert feed is not None
    assert {name: array.shape for name, array in feed.items()} == {"input": (2, 3, 32, 32)}


_SCRIPT = """
import importlib.metadata
import onnx
import onnx.parser
import onnxruntime as ort
from quark.onnx.quantization.config import DEFAULT_CONFIG_MAPPING, get_default_config
from quark.onnx.quantization.config.config import CalibrationMethod
from quark.onnx.quantization.config.config import get_default_config as the_same
from quark.onnx.quantization.quant_utils import is_version_below
from vai_q_onnx.tools.convert_customqdq_to_qdq import custom_ops_infer_shapes

assert the_same("XINT8") == get_default_config("XINT8") == DEFAULT_CONFIG_MAPPING["XINT8"]
assert CalibrationMethod.MinMax
assert not is_version_below(onnx, "1.9.1")
model = custom_ops_infer_shapes(onnx.load("model.onnx"))
print(importlib.metadata.version("amd-quark"), len(model.graph.value_info) > 5)
"""


def test_names_from_where_scripts_take_them(tmp_path: pathlib.Path) -> None:
    onnx.save(small_cnn(), tmp_path / "model.onnx")
    (tmp_path / "script.py").write_text(_SCRIPT)

    done = run_python("-m", "lowbit.quark", "script.py", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0.13+lowbit")
    assert done.stdout.endswith("True\n")


def test_a_preset_is_a_copy() -> None:
    get_default_config("XINT8").include_cle = False

    assert get_default_config("XINT8").include_cle


def test_a_search_over_several_spaces(tmp_path: pathlib.Path) -> None:
    """AMD's examples build the choices of several spaces and set them."""

    class Settings:
        search_space = {"include_cle": [False]}  # noqa: RUF012
        wide = {"activation_type": [QuantType.QInt16], "include_cle": [False, True]}  # noqa: RUF012
        search_metric_tolerance = 1e9
        search_output_dir = str(tmp_path)

    feeds = small_feeds(2, 16)
    search = AutoSearch(
        small_cnn(16), quiet("S8S8_AAWS"), Settings(), calibration_data_reader=BareReader(feeds)
    )
    spaces = (Settings.search_space, Settings.wide)
    search.all_configs = [one for space in spaces for one in search.build_all_configs(space)]

    assert len(search.all_configs) == 3
    assert len(search.search_model()) == 3


def test_a_quantized_type_by_its_word() -> None:
    """The scripts of Stable Diffusion for `vai_q_onnx` name it so."""
    mix = {"TargetQuantType": "QInt8", "NumTarget": 1, "DataSize": 2}
    made = _quantized(quiet("A16W8", {"AutoMixprecision": mix}, include_auto_mp=True))

    stored = {t.name: t.data_type for t in made.graph.initializer}
    kinds = {stored[n.input[2]] for n in made.graph.node if n.op_type == "QuantizeLinear"}
    assert kinds == {onnx.TensorProto.INT8, onnx.TensorProto.INT16}


def test_instance_normalization_under_amds_name() -> None:
    """Quark 0.13's model of this option has the same operators and gives the same numbers."""
    feeds = [{"x": np.random.default_rng(i).random((1, 4, 8, 8), np.float32)} for i in range(2)]
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y)
        <float[4] s = {1, 2, 3, 4}, float[4] b = {0, 1, 0, 1}, float[4, 4, 1, 1] w =
        {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1}>
        { c = Conv(x, w)  y = InstanceNormalization <epsilon = 0.001> (c, s, b) }"""
    models = [
        ModelQuantizer(quiet("XINT8", {"ConvertInstanceNormToDPUVersion": npu})).quantize_model(
            onnx.parser.parse_model(text), calibration_data_reader=BareReader(feeds)
        )
        for npu in (False, True)
    ]

    assert _operators(models[1])["com.amd.quark:ExtendedInstanceNormalization"] == 1
    plain, named = (
        ort.InferenceSession(m.SerializeToString()).run(None, feeds[0])[0] for m in models
    )
    np.testing.assert_array_equal(plain, named)


def _npu_softmax(x: np.ndarray) -> np.ndarray:
    """Return what the NPU's Softmax is, in NumPy's bfloat16."""

    def half(value: np.ndarray) -> np.ndarray:
        return value.astype(ml_dtypes.bfloat16).astype(np.float32)

    x = half(x)
    whole = np.floor(half(x * np.float32(1.4453125)))
    rest = half(x - half(whole * np.float32(0.69140625)))
    value = np.float32(0.21875)
    for factor in (0.486328125, 1.0, 1.0):
        value = half(rest * value + np.float32(factor))
    exponential = half(np.exp2(whole) * value)
    return half(exponential / half(exponential.sum(axis=-1, keepdims=True)))


def test_softmax_as_the_npu_computes_it() -> None:
    """Up to the sum, whose order bfloat16 leaves open, Quark 0.13's nodes give the same numbers."""
    feeds = [{"x": np.random.default_rng(i).random((1, 4), np.float32)} for i in range(4)]
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[1, 4] x) => (float[1, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, -8, 7, -6, 5, 4, -3, 2, -1}>
        { s = MatMul(x, w)  y = Softmax <axis = -1> (s) }"""
    options = {"ConvertSoftmaxToDPUVersion": True}
    made = ModelQuantizer(quiet("XINT8", options)).quantize_model(
        onnx.parser.parse_model(text), calibration_data_reader=BareReader(feeds)
    )

    assert "Softmax" not in _operators(made)
    (read,) = (n.input[0] for n in made.graph.node if n.name.endswith("/exp_poly/round/cast"))
    (given,) = (n.input[0] for n in made.graph.node if n.output[0] == "y_QuantizeLinear_Output")
    for name in (read, given):
        made.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, [1, 4]))
    session = ort.InferenceSession(made.SerializeToString())
    for feed in feeds:
        y, logits, found = session.run(None, feed)
        np.testing.assert_array_equal(found, _npu_softmax(logits))
        exact = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose(found, exact, atol=0.02)
        assert y.shape == (1, 4)


def test_8_bit_floats_have_quarks_scales() -> None:
    """amd-quark 0.13 stores these very numbers; it removes the Relu, which is kept here."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 2, 2] x) => (float[1, 2, 2, 2] y)
        <float[2, 2, 1, 1] w = {1.5, -3, 0.25, 0.7}, float[2] b = {0.5, -1.25}>
        { c = Conv(x, w, b) r = Relu(c) y = Conv(r, w, b) }"""
    )
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(1, 2, 2, 2)).astype(np.float32)} for _ in range(3)]
    kind = QuantType.QFLOAT8E4M3FN
    kinds = {"activation_type": kind, "weight_type": kind}
    config = quiet(QuantizationConfig(include_cle=False, **kinds))
    made = ModelQuantizer(config).quantize_model(model, calibration_data_reader=BareReader(feeds))

    stored = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    floats = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    names = [name.removesuffix("_quantized") for name in stored if name.endswith("_quantized")]
    assert sorted(names) == ["b", "w"]
    for name in names:
        scale = np.float32(np.abs(floats[name]).max() / np.float32(448))
        assert stored[f"{name}_scale"] == scale
        want = (floats[name] / scale).astype(ml_dtypes.float8_e4m3fn)
        assert stored[f"{name}_quantized"].tobytes() == want.tobytes()
    assert made.opset_import[0].version == 21
    assert _operators(made)["Relu"] == _operators(model)["Relu"]
    largest = max(np.abs(feed["x"]).max() for feed in feeds)
    assert stored["x_scale"] == np.float32(largest / np.float32(448))


def test_readers_may_give_lists_as_onnxruntime_takes_them() -> None:
    """Hugging Face's datasets give lists; optimum-amd's reader hands them on."""
    feeds = [{"x": np.random.default_rng(i).random((1, 4), np.float32)} for i in range(3)]
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[1, 4] x) => (float[1, 4] y) <float[4, 4] w =
        {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1}> { y = MatMul(x, w) }"""
    lists = [{"x": feed["x"].tolist()} for feed in feeds]

    want, got = (
        ModelQuantizer(quiet("A8W8")).quantize_model(
            onnx.parser.parse_model(text), calibration_data_reader=BareReader(given)
        )
        for given in (feeds, lists)
    )

    assert want.graph.SerializeToString() == got.graph.SerializeToString()


def test_a_subgraph_whose_end_is_not_there() -> None:
    config = quiet("XINT8", subgraphs_to_exclude=[(["conv2"], ["ad1"])])

    with pytest.raises(QuarkConfigError, match=r"names a node 'ad1' .*did you mean 'add1'"):
        _quantized(config)


def test_rows_masked_as_a_whole_stay_finite_in_bfloat16() -> None:
    """Random data masks everything; Quark stores float32's lowest number as bfloat16's."""
    text = """<ir_version: 8, opset_import: ["": 17]>
        net (float[1, 4] x, bool[1, 4] keep) => (float[1, 4] y)
        <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1}, float none = {0},
         float lowest = {-3.4028235e38}>
        { s = MatMul(x, w)  m = Where(keep, none, lowest)  a = Add(s, m)  y = Softmax(a) }"""
    feed = {"x": np.ones((1, 4), np.float32), "keep": np.zeros((1, 4), bool)}

    made = ModelQuantizer(quiet("BF16", {"BF16QDQToCast": True})).quantize_model(
        onnx.parser.parse_model(text), calibration_data_reader=BareReader([feed])
    )

    assert made is not None
    assert np.isfinite(ort.InferenceSession(made.SerializeToString()).run(None, feed)[0]).all()
