"""A network of which one channel holds large numbers that hardly change its outputs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_WIDE = 40.0
"""How much larger one channel is than the others."""


def wide_network() -> onnx.ModelProto:
    """Return three layers; the second hardly reads the channel of the first that is large."""
    rng = np.random.default_rng(3)
    first = rng.normal(0, 1, (6, 3, 1, 1)).astype(np.float32)
    first[:, 2] = 0
    first[2] = [[[0]], [[0]], [[1]]]  # one output passes on the large channel, and no other has it
    second = rng.normal(0, 1, (5, 6, 1, 1)).astype(np.float32)
    second[:, 2] *= 1e-4
    third = rng.normal(0, 1, (4, 5, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "third"], ["y"]),
    ]
    constants = {"first": first, "second": second, "third": third}
    graph = helper.make_graph(
        nodes,
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def wide_feeds(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return samples whose third channel is large."""
    rng = np.random.default_rng(seed)
    size = np.array([1, 1, _WIDE]).reshape(1, 3, 1, 1)
    return [{"x": (size * rng.normal(0, 1, (1, 3, 8, 8))).astype(np.float32)} for _ in range(count)]
