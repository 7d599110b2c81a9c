"""Multiply-adds counted by hand."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from lowbit.evaluate.cost import node_costs
from lowbit.graph import io


@pytest.mark.parametrize(
    ("inputs", "node", "weights", "expected"),
    [
        # 4 channels of 6x6 outputs, each 3 channels of 3x3.
        ("float[1,3,8,8] x", "Conv(x, w)", "float[4,3,3,3] w", 4 * 36 * 27),
        ("float[1,4,8,8] x", "Conv<group=4>(x, w)", "float[4,1,3,3] w", 4 * 36 * 9),
        ("float[5,7] x", "MatMul(x, w)", "float[7,2] w", 5 * 7 * 2),
        ("float[5,7] x", "Gemm<transB=1>(x, w)", "float[2,7] w", 5 * 7 * 2),
        ("float[2,5,7] x, float[2,7,3] w", "MatMul(x, w)", "", 2 * 5 * 7 * 3),
        ("float[5,7] x", "Relu(x)", "", 0),
    ],
)
def test_multiply_adds(inputs: str, node: str, weights: str, expected: int) -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => (float[] y) {{ y = {node} }}'
    message = onnx.parser.parse_model(text)
    del message.graph.output[0].type.tensor_type.shape.dim[:]
    message.graph.output[0].type.tensor_type.ClearField("shape")
    if weights:
        shape = [int(n) for n in weights[6 : weights.index("]")].split(",")]
        message.graph.initializer.append(
            onnx.numpy_helper.from_array(np.ones(shape, np.float32), "w")
        )
    message.graph.node[0].name = "n"
    feed = {
        value.name: np.ones([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in message.graph.input
    }

    cost = node_costs(io.load(message), feed)["n"]

    assert cost.multiply_adds == expected
    assert cost.elements > 0
