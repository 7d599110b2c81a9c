"""What the oldest onnxruntime and NumPy that run the tests lack."""

from __future__ import annotations

import functools

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

# onnxruntime adds a Python number to a float32 where it makes histograms around zero: float32 in
# NumPy 2, from which AMD Quark's numbers are, float64 before. lowbit's are float32 with both.
histograms_of_numpy_2 = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0",
    reason="onnxruntime's own histograms have other last bits with NumPy 1",
)


def skip_before(version: str, why: str) -> None:
    """Skip a test that meets an error of an older onnxruntime."""
    if np.lib.NumpyVersion(ort.__version__) < version:
        pytest.skip(f"onnxruntime {ort.__version__}: {why}")


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
