"""The emitted graph: valid, in order, complete, and close to float at every optimization level."""

from __future__ import annotations

import typing

import onnx
import onnxruntime as ort
from helpers.emitted_models import (
    assert_close,
    build,
    conv,
    conv_chain,
    emit_model,
    int8_config,
    normal,
    pairs_of,
)
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import random_feeds, solved
from onnx import TensorProto

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.specs import (
    BLOCKS,
    FloatSpec,
    IntegerSpec,
    Requantization,
    Rule,
    Spec,
    TensorOverride,
)
from lowbit.emit.emit import NODES, emit
from lowbit.graph import io
from lowbit.numerics.formats import FloatFormat, IntegerFormat

_BF16, _FP16 = FloatFormat.BFLOAT16, FloatFormat.FLOAT16


def test_a_chain_is_valid_and_close_at_every_optimization_level() -> None:
    model = conv_chain()

    emitted = emit_model(model, int8_config())

    assert_close(model, emitted)
    assert [v.name for v in emitted.graph.input] == ["x"]
    assert [v.name for v in emitted.graph.output] == ["y"]
    assert {"x_DequantizeLinear_Output", "r_DequantizeLinear_Output"} <= set(pairs_of(emitted))


def test_an_output_that_is_read_inside_keeps_its_name_and_is_quantized_for_both() -> None:
    model = build(
        [conv("c1", "x", "w", None, "mid"), conv("c2", "mid", "w2", None, "y")],
        {"x": [1, 4, 5, 5]},
        ["mid", "y"],
        {"w": normal(4, 4, 1, 1, seed=11), "w2": normal(4, 4, 1, 1, seed=12)},
    )

    emitted = emit_model(model, int8_config())

    assert pairs_of(emitted)["mid"].op_type == "DequantizeLinear"
    assert next(n for n in emitted.graph.node if n.name == "c2").input[0] == "mid"
    assert_close(model, emitted)


def test_an_input_that_is_an_output_stays_what_it_is() -> None:
    model = build(
        [conv("c1", "x", "w", None, "y")],
        {"x": [1, 4, 5, 5]},
        ["x", "y"],
        {"w": normal(4, 4, 1, 1, seed=13)},
    )

    emitted = emit_model(model, int8_config())

    assert [v.name for v in emitted.graph.input] == ["x"]
    assert [v.name for v in emitted.graph.output] == ["x", "y"]
    assert_close(model, emitted)


def test_names_that_are_taken_are_not_taken_again() -> None:
    """Tensors of the model may be called what emission would call its own."""
    model = build(
        [
            conv("x_QuantizeLinear", "x", "w", "b", "x_scale"),
            conv("c2", "x_scale", "x_scale_scale", "w_bias", "x_DequantizeLinear_Output"),
            conv("w", "x_DequantizeLinear_Output", "w_quantized", "b", "y"),
        ],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {
            "w": normal(4, 4, 1, 1, seed=18),
            "x_scale_scale": normal(4, 4, 1, 1, seed=19),
            "w_quantized": normal(4, 4, 1, 1, seed=20),
            "b": normal(4, seed=21),
            "w_bias": normal(4, seed=22),
        },
    )

    emitted = emit_model(model, int8_config())

    assert_close(model, emitted, 20)


def test_the_float_model_is_not_changed() -> None:
    model = conv_chain()
    state = solved(model, int8_config(), random_feeds(model))
    before = io.to_proto(state.adapted).SerializeToString()

    emit(state.adapted, state.plan, state.params, state.weights)

    assert io.to_proto(state.adapted).SerializeToString() == before


def test_every_format_has_what_writes_it() -> None:
    """A new kind of spec needs one row."""
    assert set(NODES) == set(typing.get_args(Spec))


def test_formats_go_together_in_one_file() -> None:
    """Two 16-bit formats and two block formats need two bodies for the same names."""
    config = QuantConfig(
        activation=FloatSpec(format=_BF16),
        weight=FloatSpec(format=_BF16),
        bias=FloatSpec(format=_BF16),
        target="ryzen-ai-float",
        rules=(
            Rule(op_type="Gemm", activation=BLOCKS["MX9"], weight=BLOCKS["MX6"]),
            Rule(op_type="Add", activation=FloatSpec(format=_FP16, saturate=True)),
            Rule(name="conv2", weight=BLOCKS["BFP16"]),
        ),
    )

    result = lowbit.quantize(small_cnn(), data=small_feeds(2), config=config)

    model = result.model
    onnx.checker.check_model(model, full_check=True)
    names = [(f.name, f.domain, f.overload) for f in model.functions]
    assert len(set(names)) == len(names)
    assert sum(name == "ExtendedQuantizeLinear" for name, *_ in names) == 2
    assert sum(name == "BFPQuantizeDequantize" for name, *_ in names) >= 2
    ort.InferenceSession(model.SerializeToString())
    assert result.report.sqnr_db > 20


def test_integers_and_other_formats_go_together_in_one_file() -> None:
    config = int8_config(
        rules=(Rule(name="c2", weight=BLOCKS["MX9"]),),
        tensors=(TensorOverride(tensor="y", spec=FloatSpec(format=_FP16)),),
    )

    emitted = emit_model(conv_chain(), config)

    operators = {node.op_type for node in emitted.graph.node}
    assert {"QuantizeLinear", "BFPQuantizeDequantize", "ExtendedQuantizeLinear"} <= operators
    assert_close(conv_chain(), emitted)


def test_a_requantized_tensor_is_read_in_two_formats() -> None:
    """The second pair reads the first one's result; no Identity is left between."""
    config = int8_config(
        requantize=(Requantization(tensor="r", consumers=("c2",), name="r2"),),
        tensors=(TensorOverride(tensor="r2", spec=IntegerSpec(format=IntegerFormat.INT16)),),
    )

    emitted = emit_model(conv_chain(21), config)

    assert "Identity" not in {node.op_type for node in emitted.graph.node}
    nodes = {node.output[0]: node for node in emitted.graph.node}
    (second,) = [n for n in emitted.graph.node if n.name == "c2"]
    dequantizer = nodes[second.input[0]]
    quantizer = nodes[dequantizer.input[0]]
    assert nodes[quantizer.input[0]].output[0] == "r_DequantizeLinear_Output"
    kinds = {t.name: t.data_type for t in emitted.graph.initializer}
    assert kinds[quantizer.input[2]] == TensorProto.INT16
    assert_close(conv_chain(21), emitted)
