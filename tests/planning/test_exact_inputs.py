"""Comparisons and the like read a model's inputs as they are given."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import lowbit

WEIGHT = "float[4,4] w = {1,0,2,0,0,3,0,1,2,0,1,0,0,1,0,3}"


def consumers(plan, name: str) -> tuple[str, ...] | None:
    return {tensor.name: tensor.consumers for tensor in plan.activations()}[name]


@pytest.mark.parametrize("decision", ["Less (x, c)", "Cast <to = 7> (x)", "Floor (x)"])
def test_what_decides_reads_an_input_and_others_read_integers(graph_of, plan_of, decision) -> None:
    model = graph_of(
        "float[1,4] x",
        f"float[1,4] y {{ d = {decision}\n b = Cast <to = 9> (d)\n m = MatMul (x, w)\n"
        " y = Where (b, x, m) }",
        f"{WEIGHT}, float c = {{2.0}}",
    )

    read = consumers(plan_of(model, head="int8"), "x")

    writes = {str(node.name): node.op_type for node in model.graph}
    assert read is not None
    assert sorted(writes[name] for name in read) == ["MatMul", "Where"]


def test_what_moves_an_input_to_a_decision_stays_in_float(graph_of, plan_of) -> None:
    model = graph_of(
        "float[2,4] x",
        "float[4,2] y, bool[4,2] d { t = Transpose (x)\n d = Less (t, c)\n"
        " m = MatMul (x, w)\n u = Transpose (m)\n y = Add (t, u) }",
        f"{WEIGHT}, float c = {{2.0}}",
    )

    plan = plan_of(model, head="int8")

    nodes = {str(node.name): node.op_type for node in model.graph}
    assert [nodes[name] for name in consumers(plan, "x") or ()] == ["MatMul"]
    assert [nodes[name] for name in consumers(plan, "t") or ()] == ["Add"]


def test_what_is_computed_is_compared_as_integers_give_it(graph_of, plan_of) -> None:
    model = graph_of(
        "float[1,4] x",
        "float[1,4] y { m = MatMul (x, w)\n d = Less (m, c)\n y = Where (d, m, x) }",
        f"{WEIGHT}, float c = {{2.0}}",
    )

    assert consumers(plan_of(model, head="int8"), "m") is None


@pytest.mark.parametrize("preset", ["A8W8", "U8S8_PERCHANNEL", "BF16"])
def test_numbers_at_a_threshold_and_tokens_given_in_float_stay_what_they_are(preset: str) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        g (float[3,4] x) => (float[3,4] y, int64[3,4] t)
        <{WEIGHT}, float c = {{0.3}}>
        {{ b = Less (c, x)\n z = Sub (x, x)\n m = MatMul (x, w)\n s = Where (b, m, z)
           y = Add (s, x)\n t = Cast <to = 7> (x) }}""")
    x = np.array([[0.3, 0.3, 1, 2], [3, 0.3, 49999, 5], [50001, 0.3, 8, 0.30000004]], np.float32)
    made = lowbit.quantize(model, data=[{"x": x}] * 4, preset=preset, allow_ruined=True).model

    def run(proto: onnx.ModelProto) -> list[np.ndarray]:
        return ort.InferenceSession(proto.SerializeToString()).run(None, {"x": x})

    (y, tokens), (made_y, made_tokens) = run(model), run(made)
    assert (made_tokens == tokens).all()
    assert np.abs(made_y - y).max() < 0.02 * np.abs(y).max()


@pytest.mark.parametrize("op", ["Log", "Reciprocal"])
def test_nothing_is_quantized_to_integers_right_before_a_pole(graph_of, plan_of, op: str) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[2,1] y { c = MatMul (x, v)\n s = Softmax (c)\n t = Transpose (s)\n"
        f" y = {op} (t) }}",
        "float[2,2] v = {1.0, 2.0, 3.0, 4.0}",
    )

    names = [tensor.name for tensor in plan_of(model, head="int8").activations()]

    assert "c" in names
    assert not {"s", "t"} & set(names)
