"""Gradients written as nodes, against differences of what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

from lowbit.graph import io
from lowbit.graph.onnx_passes import infer_types
from lowbit.graph.session import session
from lowbit.ops.backward import BACKWARD
from lowbit.ops.gradients import SEEDS, with_gradients

SHAPE = "float[1,4,6,6]"
# What computes y of x: each operator with a rule, and ways of it that differ.
GRAPHS = {
    "Relu": "y = Relu(x)",
    "Clip": "y = Clip(x, low, high)",
    "Clip without a bound": "y = Clip(x, low)",
    "LeakyRelu": "y = LeakyRelu<alpha = 0.3>(x)",
    "PRelu": "y = PRelu(x, slopes)",
    "Sigmoid": "y = Sigmoid(x)",
    "Tanh": "y = Tanh(x)",
    "HardSigmoid": "y = HardSigmoid<alpha = 0.3, beta = 0.4>(x)",
    "HardSwish": "y = HardSwish(x)",
    "Erf": "y = Erf(x)",
    "Gelu": "y = Gelu(x)",
    "Softmax": "y = Softmax<axis = 1>(x)",
    "Neg": "y = Neg(x)",
    "Abs": "y = Abs(x)",
    "Exp": "y = Exp(x)",
    "Log": "p = Exp(x) y = Log(p)",
    "Sqrt": "p = Exp(x) y = Sqrt(p)",
    "Reciprocal": "p = Exp(x) y = Reciprocal(p)",
    "Pow": "y = Pow(x, two)",
    "Pow of three": "y = Pow(x, three)",
    "Add": "y = Add(x, x)",
    "Add of channels": "y = Add(channels, x)",
    "Sum": "e = Exp(x) y = Sum(x, e, x)",
    "Sub": "e = Exp(x) y = Sub(e, x)",
    "Mul": "e = Exp(x) y = Mul(e, x)",
    "Mul by a mean": "m = GlobalAveragePool(x) y = Mul(m, x)",
    "Div": "e = Exp(x) y = Div(x, e)",
    "Max": "n = Neg(x) y = Max(x, n)",
    "Min": "n = Neg(x) y = Min(x, n)",
    "Where": "p = Greater(x, two) e = Exp(x) y = Where(p, x, e)",
    "LayerNormalization": "y = LayerNormalization<axis = -1>(x, gamma)",
    "Conv": "y = Conv<pads = [1, 1, 1, 1]>(x, dense)",
    "Conv with strides": "y = Conv<strides = [2, 2], pads = [1, 0, 0, 1]>(x, dense)",
    "Conv that leaves the last rows out": "y = Conv<strides = [3, 2]>(x, two_by_two)",
    "Conv with dilations": "y = Conv<dilations = [2, 2], pads = [2, 2, 2, 2]>(x, dense)",
    "Conv of channels": "y = Conv<group = 4, strides = [2, 1], pads = [1, 1, 1, 1]>(x, depthwise)",
    "Conv in groups": "y = Conv<group = 2>(x, grouped)",
    "ConvTranspose": "y = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(x, dense)",
    "MatMul": "y = MatMul(x, square)",
    "MatMul from the left": "y = MatMul(square, x)",
    "MatMul of two": "t = Transpose<perm = [0, 1, 3, 2]>(x) y = MatMul(x, t)",
    "Gemm": "f = Flatten<axis = 3>(x) y = Gemm<alpha = 0.5>(f, square)",
    "Gemm turned": "f = Flatten<axis = 3>(x) y = Gemm<transB = 1>(f, square)",
    "Identity": "y = Identity(x)",
    "Dropout": "y = Dropout(x)",
    "Flatten": "f = Flatten(x) y = Exp(f)",
    "Reshape": "f = Reshape(x, flat) y = Exp(f)",
    "Squeeze": "s = Squeeze(x, zeroth) y = Exp(s)",
    "Unsqueeze": "s = Unsqueeze(x, zeroth) y = Exp(s)",
    "Transpose": "y = Transpose<perm = [0, 2, 3, 1]>(x)",
    "Concat": "e = Exp(x) y = Concat<axis = 1>(x, e, x)",
    "Split": "a, b = Split<axis = 1, num_outputs = 2>(x) y = Exp(b)",
    "Slice": "y = Slice(x, one, minus_one, axes)",
    "Gather": "g = Gather<axis = 2>(x, index) y = Exp(g)",
    "Gather from the end": "g = Gather<axis = 3>(x, last) y = Exp(g)",
    "Pad": "y = Pad(x, pads)",
    "Expand": "m = GlobalAveragePool(x) y = Expand(m, shape)",
    "GlobalAveragePool": "y = GlobalAveragePool(x)",
    "AveragePool": "y = AveragePool<kernel_shape = [3, 3], strides = [2, 2]>(x)",
    "MaxPool": "y = MaxPool<kernel_shape = [3, 3], strides = [1, 1], pads = [1, 1, 1, 1]>(x)",
    "ReduceMean": "y = ReduceMean<keepdims = 0>(x, axes)",
    "ReduceSum": "y = ReduceSum(x, axes)",
    "Resize": 'y = Resize<mode = "linear">(x, , , sizes)',
    "Resize to corners": 'y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , sizes)',
    "Resize by the nearest": (
        'y = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , , sizes)'
    ),
    "Resize by the nearest half": 'y = Resize<mode = "nearest">(x, , , sizes)',
    "DepthToSpace": "y = DepthToSpace<blocksize = 2>(x)",
    "SpaceToDepth": "y = SpaceToDepth<blocksize = 2>(x)",
}


def _constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return rng.normal(0, 1, shape).astype(np.float32)

    return {
        "low": np.float32(-0.5),
        "high": np.float32(0.7),
        "slopes": np.float32([[[0.1]], [[0.5]], [[2]], [[0]]]),
        "two": np.float32(2),
        "three": np.float32(3),
        "gamma": floats(6),
        "channels": floats(4, 1, 1),
        "dense": floats(4, 4, 3, 3),
        "two_by_two": floats(3, 4, 2, 2),
        "depthwise": floats(4, 1, 3, 3),
        "grouped": floats(6, 2, 3, 3),
        "square": floats(6, 6),
        "flat": np.int64([1, -1]),
        "zeroth": np.int64([0]),
        "one": np.int64([1, 0]),
        "minus_one": np.int64([-1, 3]),
        "axes": np.int64([2, 3]),
        "index": np.array(1),
        "last": np.array(-1),
        "pads": np.int64([0, 0, 1, 0, 0, 0, 2, 1]),
        "shape": np.int64([1, 4, 3, 5]),
        "sizes": np.int64([1, 4, 9, 12]),
    }


def _model(body: str, opset: int = 20) -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["" : {opset}]> g ({SHAPE} x) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    used = {name for node in model.graph.node for name in node.input}
    for name, data in _constants().items():
        if name in used:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(data), name))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _gradient(model: onnx.ModelProto, x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    loaded = io.load(model)
    infer_types(loaded)
    found = with_gradients(loaded, ["y"], ["x"])
    gradient = found.gradients["x"]
    gradient.dtype = ir.DataType.FLOAT
    found.model.graph.outputs.append(gradient)
    with session(found.model) as running:
        (got,) = running.run([str(gradient.name)], {"x": x, str(found.seeds["y"].name): signs})
    return got


@pytest.mark.parametrize("name", GRAPHS)
def test_a_gradient_tells_what_a_small_change_does(name: str) -> None:
    model = _model(GRAPHS[name])
    rng = np.random.default_rng(1)
    # Far enough from all kinks, and no two alike.
    x = (rng.permutation(144) / 40 - 1.81).reshape(1, 4, 6, 6).astype(np.float32)
    signs = rng.choice(np.float32([-1, 1]), SEEDS)
    running = ort.InferenceSession(model.SerializeToString())

    def weighed(at: np.ndarray) -> np.ndarray:
        return running.run(None, {"x": at.astype(np.float32)})[0].astype(np.float64)

    y = weighed(x)
    many = y.ndim >= 3
    axes = tuple(a for a in range(y.ndim) if not (many and a == 1))
    size = np.sqrt(np.square(y).sum(axis=axes, keepdims=True) * (y.shape[1] if many else 1))
    weights = signs[: y.size].reshape(y.shape) / size

    gradient = _gradient(model, x, signs).astype(np.float64)

    change, step = rng.normal(0, 1, x.shape), 1e-3
    wanted = (weights * (weighed(x + step * change) - weighed(x - step * change))).sum() / (
        2 * step
    )
    scale = np.abs(gradient * change).sum()
    np.testing.assert_allclose((gradient * change).sum(), wanted, atol=3e-3 * scale)
    assert gradient.shape == x.shape
    assert scale > 0


def test_every_rule_is_tried() -> None:
    tried = {node.op_type for body in GRAPHS.values() for node in _model(body).graph.node}

    assert tried >= set(BACKWARD)


def test_what_lies_before_a_node_without_a_rule_is_left_out() -> None:
    model = io.load(_model("a = Relu(x) b = Sin(a) c = Relu(b) y = Add(c, x)"))
    infer_types(model)

    found = with_gradients(model, ["y"], ["x", "a", "b", "c", "y"])

    assert set(found.gradients) == {"b", "c", "y"}


def test_what_no_output_depends_on_has_no_gradient() -> None:
    model = io.load(_model("a = Relu(x) y = Neg(x)"))
    infer_types(model)

    assert set(with_gradients(model, ["y"], ["a", "x"]).gradients) == {"x"}


def test_axes_are_written_as_older_operator_sets_want_them() -> None:
    body = "m = ReduceMean<axes = [2, 3]>(x) y = Mul(m, x)"
    x = np.random.default_rng(2).normal(0, 1, (1, 4, 6, 6)).astype(np.float32)
    signs = np.random.default_rng(3).choice(np.float32([-1, 1]), SEEDS)
    newer = "m = ReduceMean(x, axes) y = Mul(m, x)"

    old, new = _gradient(_model(body, 12), x, signs), _gradient(_model(newer), x, signs)

    np.testing.assert_allclose(old, new, rtol=1e-5, atol=1e-7)
