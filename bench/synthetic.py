"""Models made up to grow in one direction: deeper, larger tensors, or a great many nodes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def residual_chain(blocks: int, channels: int, size: int) -> bytes:
    """Return a model of blocks of Conv 3x3, Relu and Add: three nodes a block."""
    rng = np.random.default_rng(0)
    shape, nodes, constants, source = [1, channels, size, size], [], [], "x"
    for index in range(blocks):
        # Small weights: the sum over all blocks must not run away.
        scale = 0.3 / (3 * channels**0.5 * blocks**0.5)
        weight = rng.normal(0, scale, (channels, channels, 3, 3)).astype(np.float32)
        bias = rng.normal(0, scale, channels).astype(np.float32)
        constants += [
            numpy_helper.from_array(weight, f"w{index}"),
            numpy_helper.from_array(bias, f"b{index}"),
        ]
        nodes += [
            helper.make_node(
                "Conv",
                [source, f"w{index}", f"b{index}"],
                [f"c{index}"],
                f"conv{index}",
                pads=[1] * 4,
            ),
            helper.make_node("Relu", [f"c{index}"], [f"r{index}"], f"relu{index}"),
            helper.make_node("Add", [source, f"r{index}"], [f"a{index}"], f"add{index}"),
        ]
        source = f"a{index}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(source, TensorProto.FLOAT, shape)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def inputs(count: int, channels: int, size: int) -> Iterable[np.ndarray]:
    """Yield samples of noise for such a model."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        yield rng.normal(0, 1, (1, channels, size, size)).astype(np.float32)
