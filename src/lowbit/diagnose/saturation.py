"""Whether this processor's int8 kernels saturate: tried out, not looked up."""

from __future__ import annotations

import functools

import numpy as np


@functools.cache
def saturates_int8() -> bool:
    """Whether a fused product of uint8 and int8 comes out wrong here.

    x86 without VNNI adds two products in 16 bits: 2 * 255 * 127 does not fit.
    """
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    weight = np.full((64, 16), 127, np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node],
        "saturation",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [4, 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.full((4, 64), 255, np.uint8)
    return bool((session.run(None, {"x": x})[0] != 64 * 255 * 127).any())
