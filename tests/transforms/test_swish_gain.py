"""The gain changes nothing in float, and brings a network of hard swishes nearer to one of swishes."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.transforms.rewrites import rewrite
from lowbit.transforms.swish_gain import GAIN

# A residual sum, a concatenation, pooling and resizing, between layers.
NETWORK = """g (float[1,3,16,16] x) => (float[1,4,8,8] y) {
  [a] a = Conv(x, w1, b1)
  [as] sa = Sigmoid(a)
  [am] ma = Mul(a, sa)
  [b] b = Conv(ma, w2, b2)
  [bs] sb = Sigmoid(b)
  [bm] mb = Mul(sb, b)
  [add] r = Add(ma, mb)
  [cat] k = Concat<axis=1>(r, mb)
  [pool] p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(k)
  [last] y = Conv(p, w3, b3)
}"""


@pytest.fixture
def weights(floats) -> dict[str, np.ndarray]:
    found = {"w1": floats(4, 3, 1, 1), "w2": floats(4, 4, 1, 1), "w3": floats(4, 8, 1, 1)}
    return {**found, **{f"b{i}": floats(4) for i in (1, 2, 3)}}


def test_the_float_network_stays_what_it_is(normal, run, floats, weights) -> None:
    model = normal(NETWORK, weights)
    x = floats(1, 3, 16, 16)

    after = rewrite(model, ["swish_gain"])

    before, now = (run(m, {"x": x})["y"] for m in (model, after))
    np.testing.assert_allclose(now, before, rtol=1e-4, atol=1e-4)
    scaled = {node.name: node for node in after.graph}["b"]
    ratio = scaled.inputs[2].const_value.numpy() / weights["b2"]
    np.testing.assert_allclose(ratio, GAIN, rtol=1e-6)
    np.testing.assert_allclose(scaled.inputs[1].const_value.numpy(), weights["w2"], rtol=1e-6)


def test_hard_swishes_of_it_are_nearer(normal, run, floats, weights) -> None:
    model = normal(NETWORK, weights)
    x = floats(1, 3, 16, 16)
    expected = run(model, {"x": x})["y"]

    plain = rewrite(model, ["sigmoid_to_hardsigmoid"])
    gained = rewrite(rewrite(model, ["swish_gain"]), ["sigmoid_to_hardsigmoid"])

    errors = [np.square(run(m, {"x": x})["y"] - expected).mean() for m in (plain, gained)]
    assert errors[1] < 0.9 * errors[0]
    assert [n.op_type for n in gained.graph] == [n.op_type for n in plain.graph]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[last] y = Conv(p, w3, b3)", "[t] t = Tanh(p) [last] y = Conv(t, w3, b3)"),
        ("[add] r = Add(ma, mb)", "[add] r = Mul(ma, mb)"),
        ("[add] r = Add(ma, mb)", "[add] q = Add(ma, mb) [c] r = Clip(q, zero, six)"),
    ],
)
def test_there_is_none_where_a_factor_does_not_pass(old: str, new: str, normal, weights) -> None:
    bounds = {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    model = normal(NETWORK.replace(old, new), {**weights, **bounds})

    after = rewrite(model, ["swish_gain"])

    assert len(after.graph) == len(model.graph)


def test_nothing_is_prepared_for_a_rewrite_that_is_skipped(normal, weights) -> None:
    model = normal(NETWORK, weights)

    after = rewrite(model, ["swish_gain"], skip=["sigmoid_to_hardsigmoid"])

    assert len(after.graph) == len(model.graph)
