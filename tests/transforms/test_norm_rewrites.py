from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx_ir import to_proto

from lowbit.transforms.rewrites import rewrite

_NORM = "y = LayerNormalization<axis=-1>(s, g, b)"
_WRITTEN_OUT = """m = ReduceMean<axes=[-1]>(s)  d = Sub(s, m)  q = Pow(d, two)  v = ReduceMean<axes=[-1]>(q)
    w = Add(v, e)  r = Sqrt(w)  n = Div(d, r)  h = Mul(n, g)  y = Add(h, b)"""
_FEED = {
    name: np.random.default_rng(seed).normal(size=(1, 4, 8)).astype(np.float32)
    for seed, name in enumerate("ax")
}
_WEIGHTS = {
    "g": np.linspace(0.5, 2, 8, dtype=np.float32),
    "b": np.linspace(-1, 1, 8, dtype=np.float32),
    "e": np.float32(1e-5),
    "two": np.float32(2),
}


def _model(normal: Callable, body: str, more: str = "", opset: int = 17):
    inputs = "float[1,4,8] a, float[1,4,8] x"
    used = _WEIGHTS if "Sqrt" in body else ("g", "b")
    weights = {name: _WEIGHTS[name] for name in used}
    text = f"g ({inputs}) => (float[1,4,8] y{more}) {{ s = Add(a, x) {body} }}"
    return normal(text, weights, opset=opset)


def _fused(model, path) -> list[str]:
    """Return the operators that onnxruntime makes of a model."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 3
    ort.InferenceSession(to_proto(model).SerializeToString(), options)
    return [node.op_type for node in onnx.load(path).graph.node]


@pytest.mark.parametrize(("body", "opset"), [(_NORM, 17), (_WRITTEN_OUT, 13)])
def test_onnxruntime_fuses_a_normalized_sum_no_more(
    normal: Callable, run: Callable, tmp_path, body: str, opset: int
) -> None:
    model = _model(normal, body, opset=opset)
    expected = run(model, _FEED)["y"]

    made = rewrite(model, ["normalized_add_to_sum"])

    assert "SkipLayerNormalization" in _fused(model, tmp_path / "before.onnx")
    assert _fused(made, tmp_path / "after.onnx") == ["Sum", "LayerNormalization"]
    np.testing.assert_array_equal(run(made, _FEED)["y"], expected)
    assert [node.name for node in made.graph] == [node.name for node in model.graph]


def test_a_sum_that_others_read_stays(normal: Callable) -> None:
    model = _model(normal, f"{_NORM} z = Relu(s)", ", float[1,4,8] z")

    made = rewrite(model, ["normalized_add_to_sum"])

    assert [n.op_type for n in made.graph] == [n.op_type for n in model.graph]


def test_a_bias_stays(normal: Callable) -> None:
    text = "g (float[1,4,8] a) => (float[1,4,8] y) { s = Add(a, c) y = LayerNormalization<axis=-1>(s, g, b) }"
    model = normal(text, {"g": _WEIGHTS["g"], "b": _WEIGHTS["b"], "c": _WEIGHTS["g"]})

    made = rewrite(model, ["normalized_add_to_sum"])

    assert "Sum" not in [n.op_type for n in made.graph]
