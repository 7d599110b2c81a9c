"""What is not quantized before operators with a pole at zero."""

from __future__ import annotations

import pytest


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
