"""Inputs fixed to a value, and inputs of other shapes than the file has."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import lowbit
from lowbit.errors import ConfigError, ModelError
from lowbit.graph import io
from lowbit.graph.session import model_inputs, session
from lowbit.normalize.inputs import (
    check_same_inputs,
    free_sizes,
    settle_inputs,
    settle_like,
)

GRAPH = """g (float[2,3] x, int64 rate, float[1] gain) => (float[2,3] y) {
    a = Cast<to=1>(rate) b = Mul(x, a) y = Mul(b, gain) }"""


def test_a_fixed_input_is_a_constant(parse, floats, run) -> None:
    original = parse(GRAPH)
    x = floats(2, 3)
    model = io.load(original)

    settle_inputs(model, {"rate": 3, "gain": 0.5}, {})

    assert [info.name for info in model_inputs(model)] == ["x"]
    with session(model) as running:
        (y,) = running.run(["y"], {"x": x})
    feed = {"x": x, "rate": np.array(3), "gain": np.array([0.5], np.float32)}
    np.testing.assert_array_equal(y, run(original, feed)[0])


@pytest.mark.parametrize(
    ("fixed", "shapes", "message"),
    [
        ({"rat": 1}, {}, r"fix_inputs: the model has no input 'rat'; did you mean 'rate'"),
        ({}, {"X": (1,)}, r"input_shapes: the model has no input 'X'; did you mean 'x'"),
        ({"rate": 1.5}, {}, r"input 'rate' is of type int64, which cannot hold 1.5"),
        ({"rate": "fast"}, {}, r"input 'rate' is of type int64, which cannot hold 'fast'"),
        ({"gain": [1.0, 2.0]}, {}, r"input 'gain' has shape \[1\]; .* has \[2\]"),
        ({}, {"x": (1, 2, 3)}, r"input 'x' has 2 axes \(\[2, 3\]\), not 3"),
    ],
)
def test_what_does_not_fit_is_named(parse, fixed, shapes, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settle_inputs(io.load(parse(GRAPH)), fixed, shapes)


def test_sizes_without_a_number_are_named_in_errors(parse) -> None:
    model = parse("g (float[N,2,?] x) => (float[N,2,?] y) { y = Neg(x) }")

    with pytest.raises(ConfigError, match=r"has 3 axes \(\[N, 2, \?\]\), not 1 \(\[4\]\)"):
        settle_inputs(io.load(model), {}, {"x": (4,)})


def test_a_shape_that_was_too_small_can_be_larger(parse, floats) -> None:
    model = io.load(parse("g (float[1,2,4,4] x) => (float[1,2,4,4] y) { h = Relu(x) y = Neg(h) }"))
    x = np.abs(floats(1, 2, 6, 5))

    settle_inputs(model, {}, {"x": (1, 2, "H", -1)})

    assert model_inputs(model)[0].shape == (1, 2, "H", None)
    with session(model) as running:
        np.testing.assert_array_equal(running.run(["y"], {"x": x})[0], -x)


def test_sizes_of_minus_one_are_free_everywhere(parse) -> None:
    model = io.load(parse("g (float[1,2] x) => (float[1,2] y) { h = Relu(x) y = Neg(h) }"))
    values = [model.graph.inputs[0], *(v for node in model.graph for v in node.outputs)]
    for value in values:
        value.shape = ir.Shape([-1, 2])

    free_sizes(model)

    assert [value.shape[0] for value in values] == [ir.SymbolicDim(None)] * 3
    assert [value.shape[1] for value in values] == [2] * 3


CHOICE = """g (float[N,4] x, int64 rate) => (float[N,4] y) {
    c = Equal(rate, high)
    y = If(c) <
        then_branch = t () => (float[N,4] p) { p = MatMul(x, w) },
        else_branch = e () => (float[N,4] q) { h = Relu(x) q = MatMul(h, v) }> }"""


def test_the_branch_of_a_fixed_input_is_quantized_and_compared(parse, floats, run) -> None:
    weights = {"w": floats(4, 4), "v": floats(4, 4), "high": np.array(16000)}
    model = parse(CHOICE, weights)
    feeds = [{"x": floats(3, 4)} for _ in range(6)]

    for rate in (16000, 8000):
        result = lowbit.quantize(model, data=feeds, preset="A16W8", fix_inputs={"rate": rate})

        assert "If" not in {node.op_type for node in result.quantized.graph}
        want = run(model, feeds[0] | {"rate": np.array(rate)})[0]
        got = run(result.model, feeds[0])[0]
        assert np.square(want).sum() > 1e4 * np.square(want - got).sum()
        # What the model was made with says which inputs the reference has no more.
        assert lowbit.compare(model, result.model, feeds).sqnr_db > 40


def test_a_model_that_is_not_ours_fixes_nothing(parse) -> None:
    model = io.load(parse(GRAPH))

    settle_like(model, io.load(parse(GRAPH)))

    assert len(model.graph.inputs) == 3


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }", None),
        ("g (float[N,3,H,8] x) => (float[N,3,H,8] y) { y = Relu(x) }", None),
        (
            "g (float[N,3,4,4] x) => (float[N,3,4,4] y) { y = Relu(x) }",
            r"'x' is \[N, 3, 4, 4\] in the quantized model and \[1, 3, 8, 8\] in the float model",
        ),
        ("g (float[3,8] x) => (float[3,8] y) { y = Relu(x) }", r"\[3, 8\] in the quantized model"),
        (
            "g (float[1,3,8,8] image) => (float[1,3,8,8] y) { y = Relu(image) }",
            "has an input 'image', the float model has 'x'",
        ),
    ],
)
def test_models_of_other_inputs_are_not_of_one_model(parse, graph, message) -> None:
    model = io.load(parse("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }"))
    other = io.load(parse(graph))

    if message is None:
        check_same_inputs(model, other)
    else:
        with pytest.raises(ModelError, match=message):
            check_same_inputs(model, other)


def test_the_command_line_says_it_too(parse, floats, tmp_path) -> None:
    from lowbit.cli import main

    weights = {"w": floats(4, 4), "v": floats(4, 4), "high": np.array(16000)}
    path, output, data = (tmp_path / name for name in ("m.onnx", "q.onnx", "d.npz"))
    path.write_bytes(parse(CHOICE, weights).SerializeToString())
    np.savez(data, x=floats(8, 4))

    words = ["quantize", path, output, "--data", data, "--fix-input", "rate=8000", "--quiet"]
    assert main([*map(str, words), "--input-shape", "x=1,4"]) == 0

    (info,) = model_inputs(io.load(output))
    assert (info.name, info.shape) == ("x", (1, 4))
