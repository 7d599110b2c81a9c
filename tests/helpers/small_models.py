"""A small picture classifier and feeds for it."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_cnn(size: int = 32) -> onnx.ModelProto:
    """Return conv-bn-relu6, a depthwise block with a residual, pool and a classifier."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int, spread: float = 0.4) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(0, spread, shape).astype(np.float32), name)

    constants = [
        weight("w1", 8, 3, 3, 3),
        numpy_helper.from_array(np.full(8, 1.2, np.float32), "gamma"),
        weight("beta", 8),
        weight("mean", 8, spread=0.1),
        numpy_helper.from_array(np.full(8, 0.7, np.float32), "var"),
        numpy_helper.from_array(np.array(0, np.float32), "zero"),
        numpy_helper.from_array(np.array(6, np.float32), "six"),
        weight("w2", 8, 1, 3, 3),
        weight("b2", 8),
        weight("w3", 5, 8),
        weight("b3", 5),
    ]
    nodes = [
        helper.make_node("Conv", ["input", "w1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization", ["c1", "gamma", "beta", "mean", "var"], ["n1"], "bn1"
        ),
        helper.make_node("Clip", ["n1", "zero", "six"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["a1"], "add1"),
        helper.make_node("GlobalAveragePool", ["a1"], ["g1"], "pool"),
        helper.make_node("Flatten", ["g1"], ["f1"], "flatten"),
        helper.make_node("Gemm", ["f1", "w3", "b3"], ["logits"], "fc", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 5])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def small_feeds(count: int, size: int = 32) -> list[dict[str, np.ndarray]]:
    """Return feeds for the classifier."""
    rng = np.random.default_rng(3)
    return [{"input": rng.normal(size=(1, 3, size, size)).astype(np.float32)} for _ in range(count)]
