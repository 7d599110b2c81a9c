"""A hard sigmoid or hard swish that is written out becomes the operator that it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lowbit.transforms.rewrites import rewrite

_NUMBERS = {
    "three": np.float32([3]),
    "six": np.float32([6]),
    "sixth": np.float32([1 / 6]),
    "zero": np.float32(0),
    "top": np.float32(6),
}
_FEED = {"x": np.linspace(-8, 8, 33, dtype=np.float32).reshape(1, 33)}


def _model(normal: Callable, body: str, more: str = ""):
    return normal(f"g (float[1,33] x) => (float[1,33] y{more}) {{ {body} }}", _NUMBERS)


@pytest.mark.parametrize(
    ("body", "operators"),
    [
        ("a = Add(x, three) c = Clip(a, zero, top) y = Div(c, six)", ["HardSigmoid"]),
        ("a = Add(three, x) c = Clip(a, zero, top) y = Mul(c, sixth)", ["HardSigmoid"]),
        (
            "a = Add(x, three) c = Clip(a, zero, top) m = Mul(x, c) y = Div(m, six)",
            ["HardSigmoid", "Mul"],
        ),
        (
            "a = Add(x, three) c = Clip(a, zero, top) d = Div(c, six) y = Mul(d, x)",
            ["HardSigmoid", "Mul"],
        ),
    ],
)
def test_a_gate_written_out_is_one_operator(
    normal: Callable, run: Callable, body: str, operators: list[str]
) -> None:
    model = _model(normal, body)

    made = rewrite(model, ["compose_hardsigmoid"])

    assert [node.op_type for node in made.graph] == operators
    np.testing.assert_allclose(run(made, _FEED)["y"], run(model, _FEED)["y"], atol=2e-6)


@pytest.mark.parametrize(
    ("body", "more"),
    [
        ("a = Add(x, three) c = Clip(a, zero, top) y = Div(c, three)", ""),  # by another number
        ("a = Add(x, three) c = Clip(a, zero, top) y = Div(c, six) z = Relu(c)", ", float[1,33] z"),
        ("a = Add(x, three) c = Clip(a, zero, top) y = Div(c, six) z = Relu(a)", ", float[1,33] z"),
        ("a = Add(x, three) c = Clip(a, three, top) y = Div(c, six)", ""),  # not from zero
        ("a = Add(x, x) c = Clip(a, zero, top) y = Div(c, six)", ""),
        ("c = Clip(x, zero, top) y = Div(c, six)", ""),
    ],
)
def test_what_is_something_else_stays(normal: Callable, body: str, more: str) -> None:
    model = _model(normal, body, more)

    made = rewrite(model, ["compose_hardsigmoid"])

    assert [node.op_type for node in made.graph] == [node.op_type for node in model.graph]


def test_a_gate_of_which_a_part_is_kept_stays(normal: Callable) -> None:
    model = _model(normal, "a = Add(x, three) c = Clip(a, zero, top) y = Div(c, six)")
    first = next(iter(model.graph)).name

    made = rewrite(model, ["compose_hardsigmoid"], keep=[first])

    assert [node.op_type for node in made.graph] == ["Add", "Clip", "Div"]
