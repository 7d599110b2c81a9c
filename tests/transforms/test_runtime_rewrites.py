"""Rewrites for runtimes compute the same in other operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx_ir import to_proto

from lowbit.transforms.rewrites import rewrite

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(3, 4)).astype(np.float32)
_W = _RANDOM.normal(size=(4, 5)).astype(np.float32)
_B = _RANDOM.normal(size=5).astype(np.float32)


@pytest.mark.parametrize("attributes", ["", "<transB=1>", "<transB=1, alpha=0.5, beta=2.0>"])
@pytest.mark.parametrize("bias", [False, True])
def test_gemm_becomes_a_product_and_a_sum(
    normal: Callable, run: Callable, attributes: str, *, bias: bool
) -> None:
    inputs = "x, w, b" if bias else "x, w"
    weights = {"w": _W.T.copy() if "transB" in attributes else _W} | ({"b": _B} if bias else {})
    model = normal(
        f"g (float[3,4] x) => (float[3,5] y) {{ y = Gemm{attributes}({inputs}) }}", weights
    )
    expected = run(model, {"x": _X})["y"]

    made = rewrite(model, ["gemm_to_matmul"])

    assert [n.op_type for n in made.graph] == (["MatMul", "Add"] if bias else ["MatMul"])
    np.testing.assert_allclose(run(made, {"x": _X})["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_gemm_of_two_computed_matrices_stays(normal: Callable) -> None:
    model = normal("g (float[3,4] x, float[4,5] w) => (float[3,5] y) { y = Gemm(x, w) }")

    made = rewrite(model, ["gemm_to_matmul"])

    assert [n.op_type for n in made.graph] == ["Gemm"]


def test_a_transposed_input_stays_with_gemm(normal: Callable) -> None:
    model = normal("g (float[4,3] x) => (float[3,5] y) { y = Gemm<transA=1>(x, w) }", {"w": _W})

    made = rewrite(model, ["gemm_to_matmul"])

    assert [n.op_type for n in made.graph] == ["Gemm"]


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


_RANDOM = np.random.default_rng(0)
_TABLES = {
    "words": _RANDOM.normal(size=(20, 8)).astype(np.float32),
    "places": _RANDOM.normal(size=(16, 8)).astype(np.float32),
    "kinds": _RANDOM.normal(size=(2, 8)).astype(np.float32),
    "gamma": _RANDOM.uniform(0.5, 2, 8).astype(np.float32),
    "beta": _RANDOM.normal(size=8).astype(np.float32),
}
_TOKENS = {
    "ids": _RANDOM.integers(0, 20, (2, 5)).astype(np.int32),
    "types": _RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
    "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "at": _RANDOM.integers(0, 16, (2, 5)).astype(np.int32),
}


@pytest.mark.parametrize(
    ("inputs", "call"),
    [
        ("ids, types, mask", "ids, types, words, places, kinds, gamma, beta, mask"),
        ("ids, types", "ids, types, words, places, kinds, gamma, beta"),
        ("ids, mask", 'ids, "", words, places, "", gamma, beta, mask'),
        ("ids, types, mask, at", "ids, types, words, places, kinds, gamma, beta, mask, at"),
    ],
)
def test_the_fused_embedding_is_written_out(
    normal: Callable, run: Callable, inputs: str, call: str
) -> None:
    names = inputs.split(", ")
    given = ", ".join(f"int32[n,t] {name}" for name in names)
    model = normal(
        f"g ({given}) => (float[n,t,8] y, int32[n] m2, float[n,t,8] s) {{"
        f"y, m, s = com.microsoft.EmbedLayerNormalization<epsilon=1e-5>({call}) m2 = Neg(m) }}",
        {n: t for n, t in _TABLES.items() if n in call},
    )
    feed = {name: _TOKENS[name] for name in names}
    expected = run(model, feed)

    made = rewrite(model, ["embed_layer_norm_to_gather"])

    assert "EmbedLayerNormalization" not in {node.op_type for node in made.graph}
    found = run(made, feed)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["s"], expected["s"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["m2"], expected["m2"])


def test_before_layer_normalization_came_it_stays(normal: Callable) -> None:
    model = normal(
        "g (int32[n,t] ids, int32[n,t] types) => (float[n,t,8] y) {"
        "y, m = com.microsoft.EmbedLayerNormalization(ids, types, words, places, kinds, gamma, beta) }",
        _TABLES,
        opset=16,
    )

    made = rewrite(model, ["embed_layer_norm_to_gather"])

    assert [node.op_type for node in made.graph] == ["EmbedLayerNormalization"]
