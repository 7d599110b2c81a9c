"""Weights in groups: blocked quantization, read back with nothing of lowbit's."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import lowbit
from lowbit import IntegerFormat, IntegerSpec, QuantConfig
from lowbit.errors import ConfigError
from lowbit.graph.session import session


def _model(depth: int, *, trans_b: bool) -> onnx.ModelProto:
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


def _feeds(depth: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(2)
    return [{"x": random.normal(size=(3, depth)).astype(np.float32)} for _ in range(4)]


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("depth", [48, 50])
@pytest.mark.parametrize("fmt", [IntegerFormat.INT4, IntegerFormat.UINT4, IntegerFormat.INT8])
def test_each_group_has_its_own_scale(depth: int, fmt: IntegerFormat, *, trans_b: bool) -> None:
    model = _model(depth, trans_b=trans_b)
    spec = IntegerSpec(format=fmt, symmetric=fmt.signed, group=16)
    config = QuantConfig(activation=None, weight=spec)

    result = lowbit.quantize(model, data=_feeds(depth), config=config)

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
    feed = _feeds(depth)[0]
    with session(result.quantized) as run:
        mine = run.run(["y"], feed)[0]
    theirs = ReferenceEvaluator(message).run(None, feed)[0]
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_more_scales_leave_less_error() -> None:
    model, feeds = _model(64, trans_b=False), _feeds(64)
    specs = [
        IntegerSpec(format=IntegerFormat.INT4),
        IntegerSpec(format=IntegerFormat.INT4, per_channel=True),
        IntegerSpec(format=IntegerFormat.INT4, group=16),
    ]
    sqnr = [
        lowbit.quantize(model, data=feeds, config=QuantConfig(activation=None, weight=s)).report
        for s in specs
    ]
    assert sqnr[0].sqnr_db < sqnr[1].sqnr_db < sqnr[2].sqnr_db


def test_a_bias_beside_groups_stays_in_float() -> None:
    """There is no one scale that its layer accumulates in."""
    spec = IntegerSpec(format=IntegerFormat.INT8, group=16)
    config = QuantConfig(
        activation=IntegerSpec(format=IntegerFormat.INT8), weight=spec, bias=lowbit.ProductBias()
    )
    result = lowbit.quantize(_model(48, trans_b=True), data=_feeds(48), config=config)
    assert not result.plan.biases
    assert _constants(result.model)["b"].dtype == np.float32


def test_layers_with_no_more_inputs_than_a_group_have_a_scale_a_channel() -> None:
    config = QuantConfig(activation=None, weight=IntegerSpec(format=IntegerFormat.INT8, group=64))
    result = lowbit.quantize(_model(48, trans_b=False), data=_feeds(48), config=config)
    (row,) = result.plan.weights()
    assert (row.spec, row.axis) == (IntegerSpec(format=IntegerFormat.INT8, per_channel=True), 1)


def test_what_groups_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match="group is 1"):
        IntegerSpec(format=IntegerFormat.INT8, group=1)
    with pytest.raises(ConfigError, match="not powers of two"):
        IntegerSpec(format=IntegerFormat.INT8, group=16, power_of_two=True)
