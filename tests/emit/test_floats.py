"""Small floats in the graph: what a plain session computes is what NumPy rounds."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import staged
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized
from onnx import numpy_helper

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.specs import BLOCKS, FloatSpec
from lowbit.emit.emission import Emission, EmitOptions
from lowbit.emit.floats import FloatNodes
from lowbit.graph import io
from lowbit.numerics.formats import FloatFormat, rounded
from lowbit.planning.plan import TensorPlan
from lowbit.targets.builtin import find_target

_BF16, _FP16 = FloatFormat.BFLOAT16, FloatFormat.FLOAT16


def _negation() -> onnx.ModelProto:
    """Return a model of one operator, so that its input's and its output's rounding show."""
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
    )


def _config(spec: FloatSpec, **options: object) -> QuantConfig:
    fields = {"activation": spec, "weight": spec, "bias": spec, "target": "ryzen-ai-float"}
    return QuantConfig(**fields, **options)


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("fmt", [_BF16, _FP16])
def test_a_tensor_is_rounded_to_the_format(
    fmt: FloatFormat, saturate: bool, scaled: bool, casts: bool
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=500) * np.exp2(rng.integers(-9, 9, 500))).astype(np.float32)
    config = _config(FloatSpec(format=fmt, saturate=saturate, scaled=scaled), casts=casts)

    result = lowbit.quantize(_negation(), data=[{"x": x}], config=config)

    session = ort.InferenceSession(result.model.SerializeToString())
    (got,) = session.run(None, {"x": x})
    scale = result.params.scales.get("x", 1.0)
    assert (scale != 1.0) == scaled
    expected = -rounded(rounded(x, fmt, scale), fmt, result.params.scales.get("y", 1.0))
    if casts and scaled:
        # Dividing is then multiplying by the inverse, which may be off in the last bit.
        np.testing.assert_allclose(got, expected, rtol=2**-7)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("casts", [False, True])
def test_saturating_float16_has_no_infinities(casts: bool) -> None:
    x = np.array([1e6, -1e6, 65504.0, 1.0], np.float32)
    runs = {}
    for saturate in (False, True):
        config = _config(FloatSpec(format=_FP16, saturate=saturate), casts=casts)
        # By its stages: verification refuses infinities that the float model does not have.
        model = io.to_proto(quantized(_negation(), config, [{"x": x}]).emitted.model)
        (runs[saturate],) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})

    np.testing.assert_array_equal(runs[True], [-65504.0, 65504.0, -65504.0, -1.0])
    assert np.isinf(runs[False][:2]).all()


@pytest.mark.parametrize(("casts", "stored"), [*itertools.product([False, True], repeat=2)])
def test_all_forms_of_it_compute_the_same(casts: bool, stored: bool) -> None:
    feeds = small_feeds(2)
    plain = lowbit.quantize(small_cnn(), data=feeds, config=_config(FloatSpec(format=_BF16)))

    config = _config(FloatSpec(format=_BF16), casts=casts, half_weights=stored)
    other = lowbit.quantize(small_cnn(), data=feeds, config=config)

    outputs = [
        ort.InferenceSession(r.model.SerializeToString()).run(None, feeds[0])[0]
        for r in (plain, other)
    ]
    np.testing.assert_array_equal(*outputs)
    stored_types = {t.data_type for t in other.model.graph.initializer if len(t.dims) > 1}
    assert stored_types == {onnx.TensorProto.BFLOAT16 if stored else onnx.TensorProto.FLOAT}
    domains = {node.domain for node in other.model.graph.node}
    assert ("com.amd.quark" in domains) == (not casts)


@pytest.mark.parametrize("casts", [False, True])
def test_scaled_constants_are_stored_at_their_scale(casts: bool) -> None:
    """What is stored is the weight over its scale; the graph multiplies by that scale again."""
    config = _config(FloatSpec(format=_FP16, scaled=True), casts=casts, half_weights=True)

    result = lowbit.quantize(small_cnn(), data=small_feeds(2), config=config)

    stored = {t.name: onnx.numpy_helper.to_array(t) for t in result.model.graph.initializer}
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in small_cnn().graph.initializer}
    scale = result.params.scales["w3"]
    assert stored["w3_quantized"].dtype == np.float16
    np.testing.assert_array_equal(
        stored["w3_quantized"], (weights["w3"] / np.float32(scale)).astype(np.float16)
    )
    assert np.abs(stored["w3_quantized"]).max() == pytest.approx(65504, rel=1e-3)


def test_tensors_that_share_a_scale_share_its_constants() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[3,2] y) '
        "{ t = Transpose(x) y = Neg(t) }"
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    config = _config(FloatSpec(format=_BF16, scaled=True))

    result = lowbit.quantize(model, data=[{"x": x}], config=config)

    pairs = {n.output[0]: n for n in result.model.graph.node if n.op_type.startswith("Extended")}
    own = pairs["x_QuantizeLinear_Output"].input[1:]
    assert pairs["t_DequantizeLinear_Output"].input[1:] == own == ["x_scale", "x_zero_point"]
    kinds = {t.name: t.data_type for t in result.model.graph.initializer}
    assert kinds["x_zero_point"] == onnx.TensorProto.BFLOAT16


def test_only_small_floats_are_written_here() -> None:
    row = TensorPlan(
        name="t", role="activation", spec=BLOCKS["MX6"], leader="t", observe="t", why=""
    )
    state = staged.quantized(_negation(), _config(FloatSpec(format=_BF16)), [])
    emission = Emission.of(state.adapted.clone(), state.plan, state.params, EmitOptions())

    with pytest.raises(TypeError, match="'t' is mx6 blocks of 16, not a small float"):
        FloatNodes(emission).activation(row)


@pytest.mark.usefixtures("shared_weights")
@pytest.mark.parametrize("fmt", [FloatFormat.FLOAT8E4M3FN, FloatFormat.FLOAT8E5M2])
def test_8_bit_floats_are_standard_pairs_with_weights_stored(fmt) -> None:
    spec = FloatSpec(format=fmt, scaled=True)
    target = msgspec.structs.replace(find_target("onnxruntime"), float_formats=(fmt,))
    config = QuantConfig(activation=spec, weight=spec, bias=spec)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1, 2, 2, 2] x) => (float[1, 2, 2, 2] y)
        <float[2, 2, 1, 1] w = {1.5, -3, 0.25, 0.7}, float[2] b = {0.5, -1.25}>
        { c = Conv(x, w, b) r = Relu(c) y = Conv(r, w, b) }"""
    model = onnx.parser.parse_model(text)
    feeds = [
        {"x": np.random.default_rng(i).normal(size=(1, 2, 2, 2)).astype("f4")} for i in range(4)
    ]

    result = lowbit.quantize(model, data=feeds, config=config, target=target, promote=False)

    made = result.model
    assert made.opset_import[0].version >= 21
    stored = {t.name: t for t in made.graph.initializer}
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    weights = [
        n for n in made.graph.node if n.op_type == "DequantizeLinear" and n.input[0] in stored
    ]
    assert {node.name for node in weights} == {"w_DequantizeLinear", "b_DequantizeLinear"}
    for node in weights:
        # onnx before 1.19 reads 8-bit floats as types of its own.
        codes, zero = (
            np.frombuffer(stored[name].raw_data, fmt.dtype)
            for name in (node.input[0], node.input[2])
        )
        scale = numpy_helper.to_array(stored[node.input[1]])
        kinds = {stored[name].data_type for name in (node.input[0], node.input[2])}
        assert kinds == {onnx.TensorProto.DataType.Value(fmt.name)}
        want = constants[node.name.removesuffix("_DequantizeLinear")]
        assert not zero.astype(np.float32)
        assert scale == np.float32(np.abs(want).max() / fmt.largest)
        assert codes.tobytes() == (want / scale).astype(fmt.dtype).tobytes()
    assert any("8-bit floats" in note for note in result.report.notes)
    assert result.report.verdict.is_usable


def test_a_relu_before_8_bit_floats_is_computed() -> None:
    """onnxruntime's optimizations take it away, so figures are of runs without any."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1, 4] x) => (float[1, 4] y) '
        "<float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, -1, 0, 0, 0, 0, -1}> "
        "{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, w) }"
    )
    feeds = [{"x": np.float32([[1, 2, 3, i + 1]])} for i in range(4)]
    spec = FloatSpec(format=FloatFormat.FLOAT8E4M3FN, scaled=True)
    target = msgspec.structs.replace(find_target("onnxruntime"), float_formats=(spec.format,))

    result = lowbit.quantize(
        model,
        data=feeds,
        config=QuantConfig(activation=spec, weight=spec),
        target=target,
        promote=False,
    )

    assert all(row.sqnr_db > 20 for row in result.report.outputs)
