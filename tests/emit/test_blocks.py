"""Block formats in the graph: a plain session computes what NumPy rounds, and says what it is."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.staged import quantized
from onnx import helper, numpy_helper

from lowbit.config.config import QuantConfig
from lowbit.config.specs import BLOCKS, BfpSpec, FloatSpec, MxSpec, Spec
from lowbit.emit.blocks import BlockNodes
from lowbit.emit.emission import Emission, EmitOptions
from lowbit.graph import io
from lowbit.numerics.blocks import Element, Rounding
from lowbit.numerics.formats import FloatFormat
from lowbit.planning.plan import TensorPlan
from lowbit.scales.formats import rounded_values

_RNG = np.random.default_rng(4)
_WEIGHT = _RNG.normal(size=(40, 6)).astype(np.float32)


def _model(weight: np.ndarray = _WEIGHT, rows: int | str = 5) -> onnx.ModelProto:
    """Return one matrix product, whose blocks lie along what is summed over."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[{rows},{weight.shape[0]}] x) => (float[{rows},{weight.shape[1]}] y)
        {{ y = MatMul(x, w) }}"""
    )
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return model


def _emit(spec: Spec, model: onnx.ModelProto | None = None) -> onnx.ModelProto:
    config = QuantConfig(activation=spec, weight=spec, target="ryzen-ai-float", head="int8")
    state = quantized(model or _model(), config, [])
    emitted = io.to_proto(state.emitted.model)
    onnx.checker.check_model(emitted, full_check=True)
    return emitted


def _attributes(model: onnx.ModelProto, output: str) -> dict[str, object]:
    (node,) = [n for n in model.graph.node if n.output[0] == output]
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


@pytest.mark.parametrize("rows", [5, "N"])
@pytest.mark.parametrize("name", BLOCKS)
def test_inputs_and_weights_are_rounded_to_the_format(name: str, rows: int | str) -> None:
    spec = BLOCKS[name]
    x = _RNG.normal(size=(5, 40)).astype(np.float32)

    model = _emit(spec, _model(rows=rows))

    # A graph output keeps its name, and what is rounded to it gets another.
    names = ("x_DequantizeLinear_Output", "w_DequantizeLinear_Output", "y_QuantizeLinear_Input")
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = ort.InferenceSession(model.SerializeToString())
    y, seen, weight, product = session.run(None, {"x": x})
    np.testing.assert_array_equal(seen, rounded_values(x, spec, 1))
    np.testing.assert_array_equal(weight, rounded_values(_WEIGHT, spec, 0))
    np.testing.assert_allclose(product, seen @ weight, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(y, rounded_values(product, spec, 1))


def test_block_floats_say_what_they_are_as_amds_operators_do() -> None:
    spec = BfpSpec(bits=13, block=16, pairs=True, rounding=Rounding.UP)

    model = _emit(spec)

    (node,) = [n for n in model.graph.node if n.output[0] == "w_DequantizeLinear_Output"]
    assert (node.op_type, node.domain) == ("BFPQuantizeDequantize", "com.amd.quark")
    assert _attributes(model, "w_DequantizeLinear_Output") == {
        "bfp_method": "to_bfp_prime",
        "bit_width": 13,
        "axis": 0,
        "block_size": 16,
        "rounding_mode": 1,
        "sub_block_size": 2,
        "sub_block_shift_bits": 1,
        "convert_to_bfloat_before_bfp": 0,
    }
    assert _attributes(_emit(BfpSpec()), "w_DequantizeLinear_Output")["bfp_method"] == "to_bfp"


def test_mx_formats_say_what_they_are_as_amds_operators_do() -> None:
    model = _emit(MxSpec(element=Element.FP6_E3M2, block=8))

    (node,) = [n for n in model.graph.node if n.output[0] == "x_DequantizeLinear_Output"]
    assert (node.op_type, node.domain) == ("MXQuantizeDequantize", "com.amd.quark")
    assert _attributes(model, "x_DequantizeLinear_Output") == {
        "element_dtype": "fp6_e3m2",
        # Activations count from the end, as their rank is not certain.
        "axis": -1,
        "block_size": 8,
        "rounding_mode": 2,
        # 40 values are five whole blocks of 8, which need no padding.
        "block_shape": [0, 5, 8, 1],
    }


def test_a_length_that_is_no_multiple_of_a_block_is_padded() -> None:
    x = _RNG.normal(size=(5, 37)).astype(np.float32)

    model = _emit(BLOCKS["MX6"], _model(_WEIGHT[:37]))

    assert "block_shape" not in _attributes(model, "x_DequantizeLinear_Output")
    model.graph.output.append(onnx.ValueInfoProto(name="x_DequantizeLinear_Output"))
    seen = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[1]
    np.testing.assert_array_equal(seen, rounded_values(x, BLOCKS["MX6"], 1))


def test_constants_are_stored_as_values_of_the_format() -> None:
    """The operator after them says what they are, and has nothing left to do."""
    model = _emit(BLOCKS["MXFP8E4M3"])

    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(stored["w"], rounded_values(_WEIGHT, BLOCKS["MXFP8E4M3"], 0))
    (node,) = [n for n in model.graph.node if n.output[0] == "w_DequantizeLinear_Output"]
    (body,) = [f for f in model.functions if (f.name, f.overload) == (node.op_type, node.overload)]
    assert [n.op_type for n in body.node] == ["Identity"]


def test_mx_integers_that_a_second_rounding_would_change_are_stored_as_floats() -> None:
    """-1.999 becomes -2, a power of two of the next exponent: rounded again, 1.015625 is 1."""
    weight = np.full((32, 1), 0.5, np.float32)
    weight[:2, 0] = [-1.999, 1.015625]

    model = _emit(BLOCKS["MXINT8"], _model(weight))

    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    np.testing.assert_array_equal(stored["w"], weight)
    model.graph.output.append(onnx.ValueInfoProto(name="w_DequantizeLinear_Output"))
    session = ort.InferenceSession(model.SerializeToString())
    seen = session.run(None, {"x": np.ones((5, 32), np.float32)})[1]
    assert seen[:3, 0].tolist() == [-2.0, 1.015625, 0.5]


@pytest.mark.parametrize(
    ("spec", "axis", "error", "message"),
    [
        (FloatSpec(format=FloatFormat.FLOAT16), 0, TypeError, "'x' is float16, not in blocks"),
        (BLOCKS["MX6"], None, ValueError, "gives 'x' blocks, but no axis for them"),
    ],
)
def test_what_a_plan_must_say_of_blocks(
    spec: Spec, axis: int | None, error: type[Exception], message: str
) -> None:
    config = QuantConfig(activation=BLOCKS["MX6"], weight=BLOCKS["MX6"], target="ryzen-ai-float")
    state = quantized(_model(), config, [])
    emission = Emission.of(state.adapted.clone(), state.plan, state.params, EmitOptions())
    row = TensorPlan(
        name="x", role="activation", spec=spec, axis=axis, leader="x", observe="x", why=""
    )

    with pytest.raises(error, match=message):
        BlockNodes(emission).activation(row)
