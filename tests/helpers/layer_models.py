"""Models of one operator with weights, and the cases of such operators."""

import numpy as np
import onnx_ir as ir

_RANDOM = np.random.default_rng(7)


def layer_model(op, x, weights, attributes, opset=17):
    value = ir.val("x", ir.DataType.FLOAT, x.shape)
    constants = [
        ir.Value(name=f"w{i}", const_value=ir.tensor(w, name=f"w{i}"), shape=ir.Shape(w.shape))
        for i, w in enumerate(weights)
    ]
    node = ir.node(op, [value, *constants], attributes, name="node")
    node.outputs[0].name = "y"
    graph = ir.Graph(
        [value], [node.outputs[0]], nodes=[node], initializers=constants, opset_imports={"": opset}
    )
    return ir.Model(graph, ir_version=9), node


def random_array(*shape):
    return _RANDOM.standard_normal(shape).astype(np.float32)


LAYER_CASES = {
    "conv": ("Conv", (2, 6, 9, 8), [(4, 6, 3, 3)], {"pads": [1, 1, 1, 1]}),
    "strided": ("Conv", (1, 3, 11, 8), [(4, 3, 3, 2)], {"strides": [2, 3], "pads": [1, 0, 0, 1]}),
    "dilated": (
        "Conv",
        (1, 3, 12, 12),
        [(4, 3, 3, 3)],
        {"dilations": [2, 3], "pads": [2, 3, 1, 0]},
    ),
    "grouped": ("Conv", (1, 6, 7, 7), [(4, 3, 3, 3)], {"group": 2, "pads": [1, 1, 1, 1]}),
    "depthwise": ("Conv", (1, 6, 7, 7), [(6, 1, 3, 3)], {"group": 6, "strides": [2, 2]}),
    "conv1d": ("Conv", (2, 4, 15), [(3, 4, 5)], {"pads": [2, 2], "strides": [2]}),
    "conv3d": ("Conv", (1, 2, 5, 6, 7), [(3, 2, 2, 3, 2)], {"pads": [1, 1, 1, 0, 1, 0]}),
    "transposed": (
        "ConvTranspose",
        (2, 4, 5, 6),
        [(4, 3, 3, 3)],
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 0]},
    ),
    "transposed groups": (
        "ConvTranspose",
        (1, 4, 5, 6),
        [(4, 3, 2, 4)],
        {"group": 2, "strides": [3, 1], "dilations": [2, 1]},
    ),
    "gemm": ("Gemm", (5, 7), [(7, 3)], {"alpha": 0.5}),
    "gemm transposed": ("Gemm", (5, 7), [(3, 7)], {"transB": 1}),
    "matmul": ("MatMul", (2, 5, 7), [(7, 3)], {}),
}
