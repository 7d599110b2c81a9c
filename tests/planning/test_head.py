from __future__ import annotations

from collections.abc import Callable

import pytest

from lowbit.planning.head import find_head

_W2 = "float[9,8,1,1] v = {" + ", ".join(["0.5"] * 72) + "}"


def test_the_tail_comes_after_the_last_linear_layer(graph_of: Callable) -> None:
    model = graph_of(
        "float[1,8,4,4] x",
        "float[1,9,4,4] y { c = Conv <kernel_shape=[1,1]> (x, v)\n y = Softmax <axis=1> (c) }",
        _W2,
    )

    head = find_head(model.graph)

    names = {node.op_type: node.name for node in model.graph}
    assert head.nodes == (names["Softmax"],)
    assert head.evidence == ()


def test_an_activation_of_the_last_layer_belongs_to_it(graph_of: Callable) -> None:
    model = graph_of(
        "float[1,8,4,4] x",
        "float[1,9,1,1] y { c = Conv <kernel_shape=[1,1]> (x, v)\n r = Relu (c)\n"
        " y = GlobalAveragePool (r) }",
        _W2,
    )

    names = {node.op_type: node.name for node in model.graph}
    assert find_head(model.graph).nodes == (names["GlobalAveragePool"],)


def test_exponentials_after_it_speak_of_decoding(graph_of: Callable, plan_of: Callable) -> None:
    model = graph_of(
        "float[1,8,4,4] x",
        "float[1,9,4,4] y { c = Conv <kernel_shape=[1,1]> (x, v)\n e = Exp (c)\n y = Mul (e, c) }",
        _W2,
    )

    assert "Exp" in find_head(model.graph).evidence[0]
    plan = plan_of(model, head="auto")
    assert any("decodes detections" in node.why for node in plan.float_nodes)
    assert "y" in plan_of(model, head="int8").by_name()


def test_a_grid_of_positions_speaks_of_decoding(graph_of: Callable) -> None:
    grid = ", ".join(str(float(k)) for k in range(16))
    model = graph_of(
        "float[1,8,4,4] x",
        "float[1,9,4,4] y { c = Conv <kernel_shape=[1,1]> (x, v)\n s = Sigmoid (c)\n y = Add (s, k) }",
        f"{_W2}, float[1,1,4,4] k = {{{grid}}}",
    )

    assert "grid of positions" in find_head(model.graph).evidence[0]


@pytest.mark.parametrize(
    ("between", "is_evidence"),
    [
        ("f = Identity (s)", True),
        ("f = Transpose <perm=[0, 3, 1, 2]> (s)", True),
        ("f = Relu (s)", False),
    ],
)
def test_an_expectation_over_a_softmax_speaks_of_decoding(
    graph_of: Callable, between: str, *, is_evidence: bool
) -> None:
    # As boxes are found: the mean of positions 0 to 8, weighted by their probabilities.
    positions = ", ".join(str(float(k)) for k in range(9))
    model = graph_of(
        "float[1,8,9,9] x",
        f"float[1,1,9,9] y {{ c = Conv <kernel_shape=[1,1]> (x, v)\n s = Softmax <axis=1> (c)\n {between}\n"
        " y = Conv <kernel_shape=[1,1]> (f, k) }",
        f"{_W2}, float[1,9,1,1] k = {{{positions}}}",
    )

    evidence = find_head(model.graph).evidence

    assert any("an expectation over a Softmax at Conv" in sign for sign in evidence) == is_evidence


@pytest.mark.parametrize("shape", ["[1]", "[1,9,1,1]"])
def test_a_factor_per_channel_is_no_grid(graph_of: Callable, shape: str) -> None:
    count = 9 if "9" in shape else 1
    numbers = ", ".join(["0.5"] * count)
    model = graph_of(
        "float[1,8,4,4] x",
        "float[1,9,4,4] y { c = Conv <kernel_shape=[1,1]> (x, v)\n s = Sigmoid (c)\n y = Mul (s, k) }",
        f"{_W2}, float{shape} k = {{{numbers}}}",
    )

    assert find_head(model.graph).evidence == ()


def test_a_product_of_two_computed_matrices_is_no_layer(graph_of: Callable) -> None:
    model = graph_of(
        "float[9,9] x", "float[9,9] y { t = Transpose (x)\n m = MatMul (x, t)\n y = Softmax (m) }"
    )

    assert len(find_head(model.graph).nodes) == 3


def test_a_model_of_small_layers_alone_has_layers(graph_of: Callable) -> None:
    model = graph_of(
        "float[1,2] x",
        "float[1,2] y { c = MatMul (x, v)\n s = Softmax (c)\n y = MatMul (s, v) }",
        "float[2,2] v = {1.0, 2.0, 3.0, 4.0}",
    )

    assert find_head(model.graph).nodes == ()
