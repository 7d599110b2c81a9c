"""Integers in the graph: domains, axes, names and groups, read back with nothing of lowbit's."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.emitted_models import (
    LEVELS,
    assert_close,
    build,
    conv,
    conv_chain,
    emit_model,
    int8_config,
    normal,
    pairs_of,
    run_at,
)
from helpers.staged import random_feeds
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.presets import find_preset
from lowbit.config.specs import AccumulatorBias, IntegerSpec
from lowbit.graph.session import session
from lowbit.numerics.formats import IntegerFormat


def test_every_stored_constant_is_an_integer_before_a_dequantizer() -> None:
    emitted = emit_model(conv_chain(), int8_config())

    kinds = {t.name: t.data_type for t in emitted.graph.initializer}
    assert kinds["w1_quantized"] == TensorProto.INT8
    assert kinds["b1_quantized"] == TensorProto.INT32
    assert not {"w1", "b1", "w2", "b2"} & set(kinds)


@pytest.mark.parametrize(
    ("activation", "opset", "domain", "expected"),
    [
        (IntegerFormat.INT8, 17, "auto", ""),
        (IntegerFormat.INT16, 17, "auto", "com.microsoft"),
        (IntegerFormat.UINT16, 17, "auto", "com.microsoft"),
        (IntegerFormat.INT16, 21, "auto", ""),
        (IntegerFormat.INT8, 17, "com.microsoft", "com.microsoft"),
        (IntegerFormat.INT16, 21, "com.microsoft", "com.microsoft"),
        (IntegerFormat.INT8, 17, "ai.onnx", ""),
    ],
)
def test_16_bit_pairs_are_microsofts_below_operator_set_21(
    activation: IntegerFormat, opset: int, domain: str, expected: str
) -> None:
    model = conv_chain(opset)

    emitted = emit_model(model, int8_config(activation, domain=domain))

    pair = pairs_of(emitted, "QuantizeLinear")["x_QuantizeLinear_Output"]
    assert pair.domain == expected
    assert_close(model, emitted)


def test_per_channel_weights_name_their_axis() -> None:
    model = conv_chain()

    emitted = emit_model(model, int8_config(per_channel=True))

    pairs = pairs_of(emitted)
    axis = {a.name: a.i for a in pairs["w1_DequantizeLinear_Output"].attribute}
    assert axis == {"axis": 0}
    assert not pairs["x_DequantizeLinear_Output"].attribute
    scales = {t.name: numpy_helper.to_array(t) for t in emitted.graph.initializer}
    assert scales["w1_scale"].shape == (4,)
    assert_close(model, emitted)


@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.UINT4])
@pytest.mark.parametrize("per_channel", [True, False])
def test_four_bit_weights_are_packed_and_run(fmt: IntegerFormat, per_channel: bool) -> None:
    model = conv_chain(21)

    emitted = emit_model(model, int8_config(weight=fmt, per_channel=per_channel))

    stored = {t.name: t for t in emitted.graph.initializer}["w1_quantized"]
    assert stored.data_type == (TensorProto.INT4 if fmt.signed else TensorProto.UINT4)
    assert_close(model, emitted, 5)


@pytest.mark.usefixtures("shared_weights")
def test_shared_weights_are_stored_once_and_shared_biases_once_a_node() -> None:
    model = build(
        [conv("c1", "x", "w", "b", "h"), conv("c2", "h", "w", "b", "y")],
        {"x": [1, 4, 5, 5]},
        ["y"],
        {"w": normal(4, 4, 1, 1, seed=14), "b": normal(4, seed=15)},
    )

    emitted = emit_model(model, int8_config())

    stored = [t for t in emitted.graph.initializer if t.data_type == TensorProto.INT8 and t.dims]
    biases = [t for t in emitted.graph.initializer if t.data_type == TensorProto.INT32 and t.dims]
    assert len(stored) == 1
    assert len(biases) == 2
    onnx.checker.check_model(emitted, full_check=True)
    for level in LEVELS:
        # Up to 1.31 onnxruntime converts a shared weight twice when asked for exact kernels.
        run_at(emitted, random_feeds(model)[0], level, exact=False)


@pytest.mark.parametrize("beta", [0.5, 2.0, -1.5, 0.0])
@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8_PERCHANNEL"])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (1,), ()])
def test_the_factor_of_a_gemms_bias_is_folded_into_it(
    beta: float, preset: str, shape: tuple[int, ...]
) -> None:
    model = build(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc", beta=beta, alpha=0.7)],
        {"x": [1, 4]},
        ["y"],
        {"w": normal(4, 5, seed=16), "b": np.abs(normal(*shape, seed=17)) + 2.0},
    )

    emitted = emit_model(model, msgspec.structs.replace(find_preset(preset), head="int8"))

    assert_close(model, emitted, 20)


def test_pairs_before_float_data_movement_are_microsofts_at_operator_set_21() -> None:
    """There onnxruntime's optimizer would turn standard ones into an invalid graph."""
    model = build(
        [
            conv("c1", "x", "w", None, "h"),
            helper.make_node("Transpose", ["h"], ["t"], name="move", perm=[0, 2, 3, 1]),
            helper.make_node("Exp", ["t"], ["y"], name="exp"),
        ],
        {"x": [1, 4, 6, 6]},
        ["y"],
        {"w": normal(4, 4, 1, 1, seed=23) / 4},
        21,
    )

    emitted = emit_model(model, int8_config(exclude=("move",)))

    domains = {name: pair.domain for name, pair in pairs_of(emitted).items()}
    assert domains["h_DequantizeLinear_Output"] == "com.microsoft"
    assert domains["x_DequantizeLinear_Output"] == ""
    assert_close(model, emitted, 20)


@pytest.mark.parametrize("rows", [(1, 4), ("n", "l")])
def test_a_product_with_its_bias_loads_at_operator_set_21(rows: tuple[int | str, ...]) -> None:
    """onnxruntime makes a Gemm of them where sizes are known, over a Reshape of its own."""
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
            helper.make_node("Add", ["product", "b"], ["sum"], name="bias"),
            helper.make_node("LayerNormalization", ["sum", "b"], ["y"], name="norm"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*rows, 6])],
        [
            numpy_helper.from_array(np.float32(normal(8, 6, seed=26)), "w"),
            numpy_helper.from_array(np.float32(np.abs(normal(6, seed=27))), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    data = [{"x": np.float32(normal(1, 4, 8, seed=seed))} for seed in range(4)]

    made = lowbit.quantize(model, data=data, preset="A8W8").model

    domain = "com.microsoft" if rows == (1, 4) else ""
    assert {n.domain for n in made.graph.node if n.op_type == "QuantizeLinear"} == {domain}
    onnxruntime.InferenceSession(made.SerializeToString()).run(None, data[0])


def test_followers_use_the_parameters_of_their_leader() -> None:
    model = build(
        [
            conv("c1", "x", "w", None, "h"),
            helper.make_node("MaxPool", ["h"], ["p"], name="pool", kernel_shape=[2, 2]),
            conv("c2", "p", "w2", None, "y"),
        ],
        {"x": [1, 4, 6, 6]},
        ["y"],
        {"w": normal(4, 4, 1, 1, seed=24), "w2": normal(4, 4, 1, 1, seed=25)},
    )

    emitted = emit_model(model, int8_config())

    pairs = pairs_of(emitted)
    assert (
        pairs["p_DequantizeLinear_Output"].input[1:] == pairs["h_DequantizeLinear_Output"].input[1:]
    )
    assert_close(model, emitted)


def _matrix(depth: int, *, trans_b: bool) -> onnx.ModelProto:
    random = np.random.default_rng(1)
    weight = random.normal(size=(6, depth) if trans_b else (depth, 6)).astype(np.float32)
    weight *= np.geomspace(0.01, 1, depth).reshape((1, -1) if trans_b else (-1, 1))
    node = (
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], "layer", transB=1)
        if trans_b
        else helper.make_node("MatMul", ["x", "w"], ["y"], "layer")
    )
    bias = random.normal(size=6).astype(np.float32)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 6])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")][: 1 + trans_b],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _rows(depth: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(2)
    return [{"x": random.normal(size=(3, depth)).astype(np.float32)} for _ in range(4)]


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("depth", [48, 50])
@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.UINT4, IntegerFormat.INT8])
def test_each_group_has_its_own_scale(depth: int, fmt: IntegerFormat, *, trans_b: bool) -> None:
    model = _matrix(depth, trans_b=trans_b)
    spec = IntegerSpec(format=fmt, symmetric=fmt.signed, group_size=16)
    config = QuantConfig(activation=None, weight=spec)

    result = lowbit.quantize(model, data=_rows(depth), config=config)

    message = result.model
    onnx.checker.check_model(message, full_check=True)
    (node,) = [n for n in message.graph.node if n.op_type == "DequantizeLinear"]
    attributes = {a.name: a.i for a in node.attribute}
    assert (node.domain, attributes) == ("", {"axis": int(trans_b), "block_size": 16})
    weight = _constants(model)["w"]
    by_output = weight if trans_b else weight.T
    scale = _constants(message)["w_scale"]
    scale = scale if trans_b else scale.T
    assert scale.shape == (6, -(-depth // 16))
    levels = 2**fmt.bits - 2 if fmt.signed else 2**fmt.bits - 1
    for i in range(scale.shape[1]):
        part = by_output[:, 16 * i : 16 * (i + 1)]
        wide = 2 * np.abs(part).max(axis=1)
        if not fmt.signed:
            wide = np.maximum(part.max(axis=1), 0) - np.minimum(part.min(axis=1), 0)
        np.testing.assert_allclose(scale[:, i], wide / levels, rtol=1e-5)
    feed = _rows(depth)[0]
    with session(result.quantized) as run:
        mine = run.run(["y"], feed)[0]
    theirs = ReferenceEvaluator(message).run(None, feed)[0]
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_more_scales_leave_less_error() -> None:
    model, feeds = _matrix(64, trans_b=False), _rows(64)
    specs = [
        IntegerSpec(format=IntegerFormat.INT4),
        IntegerSpec(format=IntegerFormat.INT4, per_channel=True),
        IntegerSpec(format=IntegerFormat.INT4, group_size=16),
    ]
    sqnr = [
        lowbit.quantize(model, data=feeds, config=QuantConfig(activation=None, weight=s)).report
        for s in specs
    ]
    assert sqnr[0].sqnr_db < sqnr[1].sqnr_db < sqnr[2].sqnr_db


def test_a_bias_beside_scales_per_group_stays_in_float() -> None:
    """There is no one scale that its layer accumulates in."""
    spec = IntegerSpec(format=IntegerFormat.INT8, group_size=16)
    config = QuantConfig(
        activation=IntegerSpec(format=IntegerFormat.INT8),
        weight=spec,
        bias=AccumulatorBias(),
    )
    result = lowbit.quantize(_matrix(48, trans_b=True), data=_rows(48), config=config)
    assert not result.plan.biases
    assert _constants(result.model)["b"].dtype == np.float32


def test_layers_with_no_more_inputs_than_a_group_have_scales_per_channel() -> None:
    config = QuantConfig(
        activation=None, weight=IntegerSpec(format=IntegerFormat.INT8, group_size=64)
    )
    result = lowbit.quantize(_matrix(48, trans_b=False), data=_rows(48), config=config)
    (row,) = result.plan.weights()
    assert (row.spec, row.axis) == (IntegerSpec(format=IntegerFormat.INT8, per_channel=True), 1)
