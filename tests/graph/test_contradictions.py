"""Where onnx infers shapes that cannot be, onnxruntime says them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import lowbit
from lowbit.graph import io
from lowbit.graph.contradictions import correct_shapes, has_contradictions

# onnx takes the spectrum of 16 samples for 16 numbers; of real ones it is 9.
SPECTRUM = """
<ir_version: 9, opset_import: ["" : 17]>
spectrum (float[1, 32, 1] x) => (float[1, 3, 4] y)
<int64 step = {8}, int64 length = {16}>
{
    seen = STFT (x, step, window, length)
    power = ReduceSumSquare <axes = [3], keepdims = 0> (seen)
    y = MatMul (power, w)
}
"""


@pytest.fixture
def spectrum() -> onnx.ModelProto:
    model = onnx.parser.parse_model(SPECTRUM)
    rng = np.random.default_rng(0)
    for name, array in (("window", np.hanning(16)), ("w", rng.normal(size=(9, 4)))):
        tensor = onnx.numpy_helper.from_array(array.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def test_a_model_whose_shapes_onnx_gets_wrong_is_quantized(spectrum: onnx.ModelProto) -> None:
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(size=(1, 32, 1)).astype(np.float32)} for _ in range(4)]

    result = lowbit.quantize(spectrum, data=feeds, preset="A16W8")

    assert min(row.sqnr_db for row in result.report.outputs) > 30


def test_onnxruntime_says_the_shapes_that_contradict(spectrum: onnx.ModelProto) -> None:
    model = io.load(spectrum)
    values = {v.name: v for node in model.graph for v in node.outputs}
    for name, shape in (("seen", [1, 3, 16, 2]), ("power", [1, 3, 16])):
        values[name].shape, values[name].type = ir.Shape(shape), ir.TensorType(ir.DataType.FLOAT)
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.type = value.type or ir.TensorType(value.const_value.dtype)
        value.shape = value.shape or ir.Shape(value.const_value.shape)
    values["y"].shape = None
    assert has_contradictions(model.graph)

    correct_shapes(model)

    assert values["seen"].shape == ir.Shape([1, 3, 9, 2])
    assert values["power"].shape == ir.Shape([1, 3, 9])
    assert values["y"].shape == ir.Shape([1, 3, 4])
    assert not has_contradictions(model.graph)


def test_a_size_that_an_integer_tells_is_no_contradiction() -> None:
    text = """
        <ir_version: 9, opset_import: ["" : 17]>
        shaped (float[2, 3] x, int64[2] size) => (float[a, b] y) { y = Reshape (x, size) }
        """
    model = io.load(onnx.parser.parse_model(text))
    model.graph.outputs[0].shape = None

    assert not has_contradictions(model.graph)
