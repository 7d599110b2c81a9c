from __future__ import annotations

from helpers.gradient_checks import graph_of

from lowbit.graph import io
from lowbit.graph.onnx_passes import infer_types
from lowbit.ops.gradients import OutputPart, with_gradients


def test_what_lies_before_a_node_without_a_rule_is_left_out() -> None:
    model = io.load(graph_of("a = Relu(x) b = Sin(a) c = Relu(b) y = Add(c, x)"))
    infer_types(model)

    found = with_gradients(model, [OutputPart("y")], ["x", "a", "b", "c", "y"])

    assert set(found.gradients) == {"b", "c", "y"}


def test_what_no_output_depends_on_has_no_gradient() -> None:
    model = io.load(graph_of("a = Relu(x) y = Neg(x)"))
    infer_types(model)

    assert set(with_gradients(model, [OutputPart("y")], ["a", "x"]).gradients) == {"x"}


def test_outputs_that_are_not_float32_say_nothing() -> None:
    model = io.load(graph_of("h = Cast<to = 10>(x) z = Neg(h) y = Relu(x)"))
    infer_types(model)

    assert set(with_gradients(model, [OutputPart("z"), OutputPart("y")], ["x", "h"]).gradients) == {
        "h",
        "x",
    } - {"h"}
