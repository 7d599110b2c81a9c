"""What the onnxruntime that runs the tests lacks."""

from __future__ import annotations

import functools

import onnxruntime as ort
import pytest
from onnx import helper


def skip_before_opset(opset: int) -> None:
    """Skip a test of operators that this onnxruntime is too old to have."""
    if not _loads(opset):
        pytest.skip(f"onnxruntime {ort.__version__} does not know operator set {opset}")


@functools.cache
def _loads(opset: int) -> bool:
    ends = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options)
    except Exception as error:  # they share no public base
        if f"Opset {opset} is under development" not in str(error):
            raise
        return False
    return True
