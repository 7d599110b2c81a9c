"""Gradients written as nodes, held against differences of what onnxruntime computes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort

from lowbit.graph import io
from lowbit.graph.onnx_passes import infer_types
from lowbit.graph.session import session
from lowbit.ops.gradients import SEEDS, OutputPart, with_gradients

SHAPE = "float[1,4,6,6]"


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


def graph_of(body: str, opset: int = 20) -> onnx.ModelProto:
    """Return a model of one image x and one output y, with the constants that it reads."""
    text = f'<ir_version: 9, opset_import: ["" : {opset}]> g ({SHAPE} x) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    used = {name for node in model.graph.node for name in node.input}
    for name, data in _constants().items():
        if name in used:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(data), name))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def gradient_of(model: onnx.ModelProto, x: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return the gradient of y with respect to x, by lowbit."""
    loaded = io.load(model)
    infer_types(loaded)
    found = with_gradients(loaded, [OutputPart("y")], ["x"])
    gradient = found.gradients["x"]
    gradient.dtype = ir.DataType.FLOAT
    found.model.graph.outputs.append(gradient)
    with session(found.model) as running:
        (got,) = running.run([str(gradient.name)], {"x": x, str(found.seeds["y"].name): signs})
    return got


def check_gradient(body: str) -> None:
    """Raise unless the gradient of a graph tells what a small change of its input does."""
    model = graph_of(body)
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

    gradient = gradient_of(model, x, signs).astype(np.float64)

    change, step = rng.normal(0, 1, x.shape), 1e-3
    wanted = (weights * (weighed(x + step * change) - weighed(x - step * change))).sum() / (
        2 * step
    )
    scale = np.abs(gradient * change).sum()
    np.testing.assert_allclose((gradient * change).sum(), wanted, atol=3e-3 * scale)
    assert gradient.shape == x.shape
    assert scale > 0
