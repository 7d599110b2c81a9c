"""Some consumers read a tensor under a second name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from lowbit.config.specs import Requantization
from lowbit.errors import PlanError
from lowbit.graph.editing import REQUANTIZED
from lowbit.transforms.requantize import insert_requantization

GRAPH = """g (float[4] x) => (float[4] h, float[4] y) {
  [relu] h = Relu(x)
  [neg] n = Neg(h)
  [abs] a = Abs(h)
  [add] y = Add(n, a)
}"""


def reads(model: ir.Model) -> dict[str, list[str]]:
    return {str(n.name): [str(v.name) for v in n.inputs] for n in model.graph}


def test_without_rows_the_model_is_itself(normal) -> None:
    model = normal(GRAPH)

    assert insert_requantization(model, ()) is model


def test_named_consumers_read_the_new_name(normal, run, floats, assert_sound) -> None:
    model = normal(GRAPH)
    row = Requantization(tensor="h", name="h_2", consumers=("neg",))

    after = insert_requantization(model, [row])

    assert reads(after) == {
        "relu": ["x"], "h_2": ["h"], "neg": ["h_2"], "abs": ["h"], "add": ["n", "a"],
    }  # fmt: skip
    assert [n.name for n in after.graph if n.meta.get(REQUANTIZED)] == ["h_2"]
    assert reads(model)["neg"] == ["h"], "the model given is not changed"
    assert_sound(model, after)
    x = floats(4)
    for name, array in run(model, {"x": x}).items():
        np.testing.assert_array_equal(run(after, {"x": x})[name], array)


def test_the_producer_writes_the_new_name_where_the_pair_comes_before(
    normal, run, floats, assert_sound
) -> None:
    model = normal(GRAPH)
    row = Requantization(tensor="h", name="h_1", consumers=("abs",), before=True)

    after = insert_requantization(model, [row])

    assert reads(after)["abs"] == ["h"]
    assert reads(after)["neg"] == ["h_1"]
    producer = after.graph[0]
    assert producer.outputs[0].name == "h_1"
    assert [value.name for value in after.graph.outputs] == ["h", "y"], "outputs keep their names"
    assert_sound(model, after)
    x = floats(4)
    for name, array in run(model, {"x": x}).items():
        np.testing.assert_array_equal(run(after, {"x": x})[name], array)


def test_an_input_is_read_under_a_second_name(normal, assert_sound) -> None:
    model = normal(GRAPH)

    after = insert_requantization(
        model, [Requantization(tensor="x", name="x_2", consumers=("relu",))]
    )

    assert reads(after)["relu"] == ["x_2"]
    assert after.graph[0].name == "x_2"
    assert_sound(model, after)


def test_a_tensor_may_have_several_names(normal) -> None:
    rows = [
        Requantization(tensor="h", name=f"h_{consumer}", consumers=(consumer,))
        for consumer in ("neg", "abs")
    ]

    after = insert_requantization(normal(GRAPH), rows)

    assert (reads(after)["neg"], reads(after)["abs"]) == (["h_neg"], ["h_abs"])


def test_an_unknown_tensor_gets_the_nearest(normal) -> None:
    row = Requantization(tensor="hh", name="h_2", consumers=("neg",))

    with pytest.raises(
        PlanError, match="no tensor is called 'hh', to be requantized; did you mean 'h'"
    ):
        insert_requantization(normal(GRAPH), [row])
