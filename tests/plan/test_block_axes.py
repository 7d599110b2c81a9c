"""Blocks lie along the dimension that is summed over."""

from __future__ import annotations

import pytest

from lowbit.config.specs import BLOCKS

_ATTENTION = (
    "float[2,4,8] x",
    """float[2,4,4] y {
        q = MatMul(x, w)
        kt = Transpose <perm = [0, 2, 1]> (q)
        s = MatMul(q, kt)
        n = Add(s, s)
        y = Softmax <axis = 1> (n)
    }""",
    "float[8,8] w = {" + ", ".join(["0.1"] * 64) + "}",
)
_LAYERS = (
    "float[1,2,4,4] x",
    """float[1,3] y {
        c = ConvTranspose(x, w)
        p = GlobalAveragePool(c)
        f = Flatten(p)
        y = Gemm(f, v, b)
    }""",
    "float[2,3,1,1] w = {1,2,3,4,5,6}, float[3,3] v = {1,2,3,4,5,6,7,8,9}, float[3] b = {1,2,3}",
)


def _axes(graph_of, plan_of, model, target: str) -> dict[str, int | None]:
    spec = BLOCKS["BFP16"]
    plan = plan_of(graph_of(*model), target, activation=spec, weight=spec, bias=spec)
    return {tensor.name: tensor.axis for tensor in plan.tensors}


@pytest.mark.parametrize(("target", "unread"), [("ryzen-ai-float", -1), ("quark-block", 1)])
def test_matrix_products_and_softmax_decide(graph_of, plan_of, target: str, unread: int) -> None:
    axes = _axes(graph_of, plan_of, _ATTENTION, target)

    assert axes["x"] == axes["q"] == -1
    assert axes["kt"] == -2
    assert axes["w"] == 0
    assert axes["n"] == 1, "Softmax sums over axis 1"
    assert axes["s"] == -1
    assert axes["y"] == unread


def test_channels_of_layers(graph_of, plan_of) -> None:
    ours = _axes(graph_of, plan_of, _LAYERS, "ryzen-ai-float")
    quarks = _axes(graph_of, plan_of, _LAYERS, "quark-block")

    assert (ours["x"], ours["c"], ours["f"]) == (1, 1, 1)
    assert ours["w"] == 0, "a transposed convolution sums over the first axis of its weight"
    assert quarks["w"] == 1
    assert ours["v"] == quarks["v"] == 0
    assert ours["b"] == quarks["b"] == 0


def test_single_numbers_stay_in_float(graph_of, plan_of) -> None:
    model = ("float[2,8] x", "float[2,8] y { y = Mul(x, k) }", "float k = {0.3}")

    axes = _axes(graph_of, plan_of, model, "ryzen-ai-float")

    assert "k" not in axes
    assert set(axes) == {"x", "y"}
