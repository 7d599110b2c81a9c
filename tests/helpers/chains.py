"""Small models written as lists of nodes, and running them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize


def chain(*nodes: onnx.NodeProto, **constants: tuple[int, ...] | list[float]) -> ir.Model:
    """Return a model from x to y; a constant is its values, or the shape of random ones."""
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.normal(size=given).astype(np.float32) * np.float32(4)
        if isinstance(given, tuple)
        else np.array(given)
        for name, given in constants.items()
    }
    graph = helper.make_graph(
        list(nodes),
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opset = helper.make_opsetid("", 17)
    proto = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return normalize(ir.from_proto(proto)).clone()


def node(op_type: str, inputs: str, output: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], name=f"{output}_node", **attributes)


def outputs(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(7).normal(size=(1, 3, 8, 8)).astype(np.float32)
    with session(model) as running:
        return running.run(["y"], {"x": x})[0]
