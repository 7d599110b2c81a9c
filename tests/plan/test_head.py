from __future__ import annotations

from collections.abc import Callable

from lowbit.planning.head import find_head

_W2 = "float[9,8,1,1] v = {" + ", ".join(["0.5"] * 72) + "}"


def test_the_tail_is_what_comes_behind_the_last_learned_layer(graph_of: Callable) -> None:
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


def test_exponentials_behind_it_speak_of_decoding(graph_of: Callable, plan_of: Callable) -> None:
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
