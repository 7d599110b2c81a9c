"""Where a quantized model quantizes, and what its constants were in float."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers.quantizers import pairs_model, scale
from helpers.small_models import small_cnn, small_feeds

import lowbit
from lowbit.analyze.quantizers import find_quantizers, is_refined, read_constants, stripped
from lowbit.config.presets import find_preset
from lowbit.graph import io
from lowbit.normalize.normalize import normalize


@pytest.fixture(scope="module")
def quantized() -> ir.Model:
    return lowbit.quantize(small_cnn(), data=small_feeds(8), preset="A8W8").quantized


def test_every_quantizer_is_found_with_what_it_quantizes(quantized) -> None:
    found = {q.tensor: q for q in find_quantizers(quantized)}

    assert {"input", "r1", "logits", "w1", "w2", "w3"} <= set(found)
    assert (found["r1"].kind, found["r1"].format, found["r1"].op_type) == (
        "activation",
        "int8",
        "Clip",
    )
    assert found["w2"].bias is not None
    low, high = found["r1"].scale.limits
    assert low < 0 < high


def test_quantizers_of_another_tool_are_understood() -> None:
    found = {q.tensor: q for q in find_quantizers(pairs_model())}

    assert list(found) == ["x", "wq", "r", "y"]
    assert (found["x"].format, found["x"].op_type) == ("uint8", "input of Conv")
    assert found["x"].consumer == "c_node"
    assert found["x"].scale.limits == (-1.5, 126.0)
    # A graph's output keeps its name; without a zero point it is unsigned.
    assert (found["y"].source, found["y"].results, found["y"].format) == ("a", ("y",), "uint8")
    assert found["y"].scale.limits == (0.0, 255 / 16)


def test_a_tensor_that_is_dequantized_twice_is_one_quantizer() -> None:
    found = {q.tensor: q for q in find_quantizers(pairs_model())}

    assert found["r"].results == ("rd1", "rd2")
    assert found["r"].nodes == ("rq_node", "rd1_node", "rd2_node")


def test_a_bias_belongs_to_its_weight() -> None:
    found = {q.tensor: q for q in find_quantizers(pairs_model())}

    assert found["wq"].bias == ("bd", "bq")
    assert found["wq"].channel_axis == 0
    assert found["wq"].scale.axis == 0
    np.testing.assert_array_equal(found["wq"].scale.scale, [0.25, 0.5])


def test_the_channel_axis_is_that_of_the_operator() -> None:
    model = lowbit.quantize(small_cnn(), data=small_feeds(2), preset="U8S8_PERCHANNEL")
    axes = {
        q.tensor: q.channel_axis for q in find_quantizers(model.quantized) if q.kind == "weight"
    }

    # Gemm with transB has its output channels first.
    assert axes == {"w1": 0, "w2": 0, "w3": 0}


def test_quantizers_come_in_the_order_in_which_they_are_read(quantized) -> None:
    names = [q.tensor for q in find_quantizers(quantized)]

    assert names.index("input") < names.index("w1") < names.index("r1") < names.index("w2")
    assert names[-1] == "logits"


@pytest.mark.parametrize(("preset", "word"), [("BFP16", "BFP"), ("MXINT8", "MX")])
def test_blocks_have_no_scale(preset, word) -> None:
    model = lowbit.quantize(small_cnn(), data=small_feeds(2), preset=preset).quantized

    found = [q for q in find_quantizers(model) if q.kind == "activation"]

    assert {q.format for q in found} == {word}
    assert all(q.scale is None for q in found)
    assert found[0].tensor == "input"


def test_a_float_model_quantizes_nothing() -> None:
    assert find_quantizers(io.load(small_cnn())) == ()


def test_limits_are_those_of_all_channels() -> None:
    assert scale(np.array([0.5, 2.0])).limits == (-256.0, 254.0)
    assert scale(0.5, zero=-128).limits == (0.0, 127.5)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("r1_DequantizeLinear_Output", "r1"),
        ("logits_QuantizeLinear_Input", "logits"),
        ("w1_quantized", "w1"),
        ("r1", "r1"),
        ("a_quantized_b", "a_quantized_b"),
    ],
)
def test_names_are_those_of_the_float_model(name, plain) -> None:
    assert stripped(name) == plain


def test_a_model_says_whether_its_weights_were_refined(quantized) -> None:
    config = msgspec.structs.replace(find_preset("A8W8"), refinement=None)
    plain = lowbit.quantize(small_cnn(), data=small_feeds(2), config=config).quantized

    assert is_refined(quantized)
    assert not is_refined(plain)
    assert not is_refined(pairs_model())


# Constants


def test_constants_are_what_onnxruntime_dequantizes() -> None:
    model = pairs_model()
    proto = io.to_proto(model)
    names = ["w_DequantizeLinear_Output", "bd"]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(proto.SerializeToString())
    want = session.run(names, {"x": np.zeros((1, 2, 2, 2), np.float32)})

    found = read_constants(model, pairs_model(), find_quantizers(model))

    for name, expected in zip(names, want, strict=True):
        np.testing.assert_array_equal(found[name].quantized, expected)
    np.testing.assert_array_equal(found["bd"].codes, [8, -4])
    # The float model has no such weight.
    assert found[names[0]].float_value is None


def test_the_float_values_are_those_of_the_float_model(quantized) -> None:
    floats = normalize(io.load(small_cnn()), small_feeds(1)[0])

    found = read_constants(quantized, floats, find_quantizers(quantized))

    for name in ("w2", "w3", "b2", "b3"):
        constant = found[f"{name}_DequantizeLinear_Output"]
        plain = floats.graph.initializers[name].const_value.numpy()
        np.testing.assert_array_equal(constant.float_value, plain)
        np.testing.assert_allclose(constant.quantized, plain, atol=0.1)


def test_constants_that_nodes_round_are_as_stored_numbers_without_axes_too() -> None:
    quantized = lowbit.quantize(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            g (float[1,4] x) => (float[1,4] z) <float k = {3.0}, float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}>
            { y = MatMul(x, w)
              z = Mul(y, k) }"""
        ),
        preset="BF16",
    ).quantized

    found = read_constants(quantized, quantized, find_quantizers(quantized))

    assert {n: c.float_value for n, c in found.items()} == {
        "k_DequantizeLinear_Output": None,
        "w_DequantizeLinear_Output": None,
    }
    assert found["k_DequantizeLinear_Output"].quantized == 3.0


def _known(factor: float) -> list[bool]:
    """Return of each weight whether its float values are found, some channels scaled in between."""
    plain = msgspec.structs.replace(
        find_preset("A8W8"), refinement=None, keep_only_if_better=False, equalization=None
    )
    model = small_cnn()
    quantized = lowbit.quantize(model, data=small_feeds(8), config=plain).quantized
    floats = normalize(io.load(model))
    for value in floats.graph.initializers.values():
        data = value.const_value.numpy()
        if data.ndim == 4:
            scaled = data.copy()
            scaled[: len(data) // 2] *= factor
            value.const_value = ir.tensor(scaled, name=value.name)
    quantizers = find_quantizers(quantized)
    constants = read_constants(quantized, floats, quantizers)
    return [
        constants[q.results[0]].float_value is not None
        for q in quantizers
        if q.kind == "weight" and constants[q.results[0]].codes.ndim == 4
    ]


@pytest.mark.parametrize(("factor", "known"), [(1.0, True), (1.15, False), (0.8, False)])
def test_rescaled_weights_are_not_taken_for_the_float_ones(factor: float, known: bool) -> None:
    found = _known(factor)

    assert found
    assert all(k == known for k in found)
