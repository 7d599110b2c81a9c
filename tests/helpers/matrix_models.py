"""MatMul and Gemm one after another, and inputs whose channels go together, as embeddings do."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def matrices(width: int = 40, opset: int = 17) -> onnx.ModelProto:
    """Return two MatMul and a Gemm with Relu between them."""
    random = np.random.default_rng(2)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        spread = np.sqrt(2 / shape[0])
        return numpy_helper.from_array(random.normal(0, spread, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["m0"], "matmul0"),
        helper.make_node("Relu", ["m0"], ["r0"], "relu0"),
        helper.make_node("MatMul", ["r0", "w1"], ["m1"], "matmul1"),
        helper.make_node("Relu", ["m1"], ["r1"], "relu1"),
        helper.make_node("Gemm", ["r1", "w2", "b2"], ["y"], "gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "matrices",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [24, width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [24, 10])],
        [weight("w0", width, 64), weight("w1", 64, 48), weight("w2", 10, 48), weight("b2", 10)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def rows(count: int, seed: int = 4, width: int = 40) -> list[dict[str, np.ndarray]]:
    """Return inputs for the model: a few hidden numbers make up each row."""
    mix = np.random.default_rng(17).normal(size=(8, width))
    random = np.random.default_rng(seed)
    hidden = random.normal(size=(count, 24, 8)) @ mix + 0.3 * random.normal(size=(count, 24, width))
    return [{"x": x.astype(np.float32)} for x in hidden]
