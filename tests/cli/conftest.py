"""A small model, data for it, and a way to run the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from lowbit.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command gave."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: object) -> Ran:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return call


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the current one, so that messages hold short paths."""
    monkeypatch.chdir(tmp_path)
    # What rich takes for the width of a pipe.
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.fixture
def model(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(make_model(), path)
    return path


@pytest.fixture
def data(folder: Path) -> Path:
    path = folder / "data.npz"
    rng = np.random.default_rng(7)
    np.savez(path, image=rng.normal(size=(12, 3, 8, 8)).astype(np.float32))
    return path


def make_model() -> onnx.ModelProto:
    """Two convolutions, a classifier, and a cosine that nothing quantizes."""
    rng = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["pooled"], "pool"),
        helper.make_node("Flatten", ["pooled"], ["flat"], "flatten"),
        helper.make_node("Gemm", ["flat", "w3", "b3"], ["logits"], "classify"),
        helper.make_node("Cos", ["logits"], ["angle"], "cosine"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 5]),
            helper.make_tensor_value_info("angle", TensorProto.FLOAT, [1, 5]),
        ],
        [
            constant("w1", 8, 3, 3, 3),
            constant("b1", 8),
            constant("w2", 8, 8, 3, 3),
            constant("b2", 8),
            constant("w3", 8, 5),
            constant("b3", 5),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
