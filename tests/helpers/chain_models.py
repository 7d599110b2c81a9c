"""A chain of convolutions, and inputs whose neighbouring values are alike, as in images."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def chain(layers: int = 4, channels: int = 12, seed: int = 1) -> onnx.ModelProto:
    """Return a chain of 3x3 convolutions with Relu: errors add up along it."""
    random = np.random.default_rng(seed)
    nodes, constants, last = [], [], "x"
    for i in range(layers):
        shape = (channels, 3 if i == 0 else channels, 3, 3)
        spread = np.sqrt(2 / np.prod(shape[1:]))
        constants += [
            numpy_helper.from_array(random.normal(0, spread, shape).astype(np.float32), f"w{i}"),
            numpy_helper.from_array(random.normal(0, 0.1, channels).astype(np.float32), f"b{i}"),
        ]
        nodes += [
            helper.make_node("Conv", [last, f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"relu{i}"),
        ]
        last = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def smooth(count: int, seed: int = 5) -> list[dict[str, np.ndarray]]:
    """Return inputs for the chain."""
    random = np.random.default_rng(seed)
    coarse = random.standard_normal((count, 1, 3, 4, 4)).astype(np.float32)
    fine = np.repeat(np.repeat(coarse, 4, axis=3), 4, axis=4)
    return [{"x": x + 0.1 * random.standard_normal(x.shape).astype(np.float32)} for x in fine]
