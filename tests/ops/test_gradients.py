from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from helpers.gradient_checks import graph_of

from lowbit.graph import io
from lowbit.graph.onnx_passes import infer_types
from lowbit.graph.session import session
from lowbit.ops.gradients import SEEDS, OutputPart, WithGradients, with_gradients


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


@pytest.mark.parametrize("axis", [1, 3])
def test_parts_count_relative_to_their_own_size_and_where_they_are_read(axis: int) -> None:
    """Of y = x the gradient is the seed times what each number is multiplied by."""
    model = io.load(graph_of("y = Identity(x)"))
    infer_types(model)
    scores = OutputPart("y", axis, 3, 4, is_one=True)
    boxes = OutputPart("y", axis, 0, 2, read_at=scores)
    found = with_gradients(model, [boxes, scores], ["x"])
    gradient = found.gradients["x"]
    gradient.dtype = ir.DataType.FLOAT
    found.model.graph.outputs.append(gradient)
    x = np.abs(np.random.default_rng(0).normal(0, 1, (1, 4, 6, 6))).astype(np.float32)
    ones = {str(found.seeds["y"].name): np.ones(SEEDS, np.float32)}
    with session(found.model) as running:
        (got,) = running.run([str(gradient.name)], {"x": x, **ones})

    x, got = np.moveaxis(x, axis, 1).astype(np.float64), np.moveaxis(got, axis, 1)
    read = x[:, :2] * x[:, 3:4]
    # Channels that lie where figures are taken count one by one, others together.
    axes = (0, 2, 3) if axis == 1 else (0, 1, 2, 3)
    size = np.sqrt(np.square(read).sum(axis=axes, keepdims=True) * (2 if axis == 1 else 1))
    np.testing.assert_allclose(got[:, :2], x[:, 3:4] / size + 0 * read, rtol=1e-4)
    np.testing.assert_allclose(got[:, 3], 1 / np.linalg.norm(x[:, 3]), rtol=1e-4)
    np.testing.assert_array_equal(got[:, 4:], 0)
    np.testing.assert_array_equal(got[:, 2], 0)


def test_what_counts_more_has_larger_gradients() -> None:
    model = io.load(graph_of("a = Relu(x) y = Neg(a)"))
    infer_types(model)
    feed = {"x": np.abs(np.random.default_rng(0).normal(0, 1, (1, 4, 6, 6))).astype(np.float32)}

    plain, triple = (
        _gradient(with_gradients(model, [OutputPart("y", counts=n)], ["a"]), "a", feed)
        for n in (1.0, 3.0)
    )

    np.testing.assert_allclose(triple, 3 * plain, rtol=1e-5)


def _gradient(found: WithGradients, name: str, feed: dict[str, np.ndarray]) -> np.ndarray:
    value = found.gradients[name]
    value.dtype = ir.DataType.FLOAT
    found.model.graph.outputs[:] = [value]
    ones = {str(seed.name): np.ones(SEEDS, np.float32) for seed in found.seeds.values()}
    with session(found.model) as running:
        return running.run([str(value.name)], {**feed, **ones})[0]
