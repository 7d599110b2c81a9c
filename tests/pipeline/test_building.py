"""The tail of a classifier that one scale would ruin stays in float, found by measured ranges."""

from __future__ import annotations

import msgspec
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import lowbit
from lowbit.config.presets import find_preset


def _classifier() -> onnx.ModelProto:
    """Return convolution, Relu, average: responses are few and high, their averages low."""
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 4, (10, 8, 1, 1)).astype(np.float32)
    bias = np.full(10, -24, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], "conv", kernel_shape=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["y"], "flatten"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _noise(model: onnx.ModelProto, quantized: onnx.ModelProto, feeds: list) -> float:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    one, other = (ort.InferenceSession(m.SerializeToString(), options) for m in (model, quantized))
    gaps = [one.run(None, feed)[0] - other.run(None, feed)[0] for feed in feeds]
    return float(np.square(gaps).mean())


def test_an_average_at_the_end_is_kept_from_the_scale_of_its_peaks() -> None:
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(0, 1.5, (1, 8, 16, 16)).astype(np.float32)} for _ in range(16)]
    model = _classifier()
    plain = msgspec.structs.replace(
        find_preset("XINT8"), refinement=None, keep_only_if_better=False, equalization=None
    )

    auto = lowbit.quantize(model, data=feeds, config=plain)
    forced = lowbit.quantize(model, data=feeds, config=msgspec.structs.replace(plain, head="int8"))

    assert {node.op_type for node in auto.plan.float_nodes} == {"GlobalAveragePool", "Flatten"}
    assert forced.plan.float_nodes == ()
    assert _noise(model, auto.model, feeds) < 0.5 * _noise(model, forced.model, feeds)
