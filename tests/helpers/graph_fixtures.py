"""Fixtures of graph tests: makers of small models, and runs of the originals to compare with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

Weights = Mapping[str, np.ndarray]


def _parse(
    graph: str, weights: Weights | None = None, *, opset: int = 17, ir_version: int = 8
) -> onnx.ModelProto:
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{header}\n{graph}")
    for name, data in (weights or {}).items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(data), name))
    return model


def _run(
    model: onnx.ModelProto | ir.Model, feed: Weights, outputs: Sequence[str] | None = None
) -> list[np.ndarray]:
    proto = onnx.ModelProto()
    proto.CopyFrom(ir.to_proto(model) if isinstance(model, ir.Model) else model)
    if isinstance(model, onnx.ModelProto):
        # onnxruntime refuses nodes of one name; no result depends on names.
        for node in proto.graph.node:
            node.name = ""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(proto.SerializeToString(), options)
    return session.run(outputs, dict(feed))


def _assert_same(
    original: onnx.ModelProto, changed: ir.Model, feed: Weights, *, tolerance: float = 1e-5
) -> None:
    names = [output.name for output in original.graph.output]
    assert [output.name for output in changed.graph.outputs] == names
    assert any(np.abs(a).max() > 0.01 for a in _run(original, feed)), "the test sees only zeros"
    for expected, actual in zip(_run(original, feed), _run(changed, feed), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def parse() -> Callable[..., onnx.ModelProto]:
    """Make a model of a graph in ONNX text and weights by name."""
    return _parse


@pytest.fixture
def run() -> Callable[..., list[np.ndarray]]:
    """Run a model in onnxruntime, without any of lowbit."""
    return _run


@pytest.fixture
def assert_same() -> Callable[..., None]:
    """Check that a changed model gives the original's outputs, names and types included."""
    return _assert_same


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def floats(rng: np.random.Generator) -> Callable[..., np.ndarray]:
    """Draw float32 numbers of a shape."""
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


@pytest.fixture
def norm(rng: np.random.Generator) -> Callable[[int], dict[str, np.ndarray]]:
    """Draw the parameters of a BatchNormalization, none of them trivial."""

    def draw(channels: int) -> dict[str, np.ndarray]:
        drawn = {name: rng.normal(size=channels) for name in ("gamma", "beta", "mean")}
        drawn["var"] = rng.uniform(0.2, 2, channels)
        return {name: data.astype(np.float32) for name, data in drawn.items()}

    return draw
