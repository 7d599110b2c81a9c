"""A small network whose weights saturate in kernels that add two products in 16 bits."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def saturating_network() -> onnx.ModelProto:
    """Return convolutions of three channels, of one tap, in groups and depthwise, and a Gemm."""
    random = np.random.default_rng(3)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        # Even and large, so that pairs of one sign are many.
        return numpy_helper.from_array(random.uniform(-1, 1, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["a"], ["ar"]),
        helper.make_node("Conv", ["ar", "w2", "b2"], ["d"], kernel_shape=[3, 3], group=16),
        helper.make_node("Relu", ["d"], ["dr"]),
        helper.make_node("Conv", ["dr", "w3", "b1"], ["e"], kernel_shape=[1, 1]),
        helper.make_node("Relu", ["e"], ["er"]),
        helper.make_node("Conv", ["er", "w4", "b1"], ["g"], kernel_shape=[2, 2], group=4),
        helper.make_node("Relu", ["g"], ["gr"]),
        helper.make_node("GlobalAveragePool", ["gr"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w5", "b5"], ["y"], transB=1),
    ]
    constants = [
        constant("w1", 16, 3, 3, 3),
        constant("w2", 16, 1, 3, 3),
        constant("w3", 16, 16, 1, 1),
        constant("w4", 16, 4, 2, 2),
        constant("w5", 10, 16),
        constant("b1", 16),
        constant("b2", 16),
        constant("b5", 10),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
