"""Normalized models of one graph, and runs of them without lowbit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from lowbit.graph import io
from lowbit.normalize.normalize import normalize

Arrays = Mapping[str, np.ndarray]


def _normal(graph: str, weights: Arrays | None = None, *, opset: int = 17) -> ir.Model:
    header = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]>'
    proto = onnx.parser.parse_model(f"{header}\n{graph}")
    for name, data in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(data), name))
    return normalize(io.load(proto))


def _run(model: ir.Model, feed: Arrays) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    names = [output.name for output in model.graph.outputs]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def _assert_sound(before: ir.Model, after: ir.Model) -> None:
    known = {value.name for node in before.graph for value in node.outputs}
    written = [value.name for node in after.graph for value in node.outputs]
    assert known <= set(written), "a tensor lost its name"
    assert len(written) == len(set(written))
    assert all(v.dtype is not None and v.shape is not None for n in after.graph for v in n.outputs)
    # The checker wants nodes in order, and shapes that agree with what is inferred.
    onnx.checker.check_model(ir.to_proto(after), full_check=True)


@pytest.fixture
def normal() -> Callable[..., ir.Model]:
    """Make a normalized model of a graph in ONNX text and weights by name."""
    return _normal


@pytest.fixture
def run() -> Callable[..., dict[str, np.ndarray]]:
    """Run a model in onnxruntime and return its outputs by name."""
    return _run


@pytest.fixture
def assert_sound() -> Callable[..., None]:
    """Check that a rewritten model is valid and that every tensor kept its name."""
    return _assert_sound


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def floats(rng: np.random.Generator) -> Callable[..., np.ndarray]:
    """Draw float32 numbers of a shape."""
    return lambda *shape: rng.normal(size=shape).astype(np.float32)
