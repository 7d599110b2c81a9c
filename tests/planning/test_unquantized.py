"""What is said of models of which nothing is quantized, or of which layers are out of reach."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import lowbit
from lowbit.graph import io
from lowbit.planning.unquantized import layers_in_subgraphs, why_nothing

_BRANCH = """z = If(c) <
    then_branch = t () => (float[N,2] p) { m = MatMul(x, w) p = Gemm(m, w) },
    else_branch = e () => (float[N,2] q) { q = Relu(x) }>"""


def made(body: str, inputs: str = "float[N,2] x") -> onnx.ModelProto:
    header = '<ir_version: 8, opset_import: ["": 17]>'
    weight = "<float[2,2] w = {1.0, 2.0, 3.0, 4.0}>"
    return onnx.parser.parse_model(f"{header} g ({inputs}) => (float[N,2] z) {weight} {{ {body} }}")


@pytest.mark.parametrize(
    ("body", "inputs", "words"),
    [
        ("y = Exp(x) z = Exp(y)", "float[N,2] x", ("Exp (2)", "no linear layer (Conv, ")),
        (
            _BRANCH,
            "float[N,2] x, bool c",
            ("If (1)", "2 linear layers inside If stay in float", "fix it (--fix-input c=VALUE)"),
        ),
    ],
)
def test_what_was_found_is_named(body: str, inputs: str, words: tuple[str, ...]) -> None:
    feed = {"x": np.ones((1, 2), np.float32)}
    feed |= {"c": np.array(True)} if "bool" in inputs else {}

    with pytest.raises(lowbit.PlanError, match="nothing would be quantized") as raised:
        lowbit.quantize(made(body, inputs), data=[feed], preset="A8W8")

    for word in words:
        assert word in str(raised.value)


def test_layers_out_of_reach_are_noted() -> None:
    body = _BRANCH.replace("z = If", "b = If") + " z = MatMul(b, w)"
    feeds = [{"x": np.ones((1, 2), np.float32), "c": np.array(True)}]

    result = lowbit.quantize(made(body, "float[N,2] x, bool c"), data=feeds, preset="A8W8")

    assert any("2 linear layers inside If" in note for note in result.report.notes)


def test_many_kinds_are_not_all_named() -> None:
    text = why_nothing(io.load(made("a = Exp(x) b = Sin(a) c = Cos(b) d = Tan(c) z = Abs(d)")), ())

    assert "and 1 more kinds" in text


def test_linear_layers_without_constant_weights_are_told() -> None:
    text = why_nothing(io.load(made("z = MatMul(x, y)", "float[N,2] x, float[2,2] y")), ["a", "a"])

    assert "none of its linear layers has constant weights" in text
    assert "because: a (2)" in text


def test_models_without_layers_in_branches_need_no_word() -> None:
    assert layers_in_subgraphs(io.load(made("z = MatMul(x, w)"))) == ""
