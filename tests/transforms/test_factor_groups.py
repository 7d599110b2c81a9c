"""A common factor on tensors changes nothing in float, and goes only where it can be taken up."""

from __future__ import annotations

import numpy as np
import pytest

from lowbit.config.transforms import Rescaling
from lowbit.graph.session import with_outputs
from lowbit.transforms import implementation_of
from lowbit.transforms.factor_groups import FactorGroups, saturated_clips
from lowbit.transforms.implementation import Context

# Two Clips, a residual sum, a constant that is added, a concatenation, pooling, between layers.
NETWORK = """g (float[1,3,8,8] x) => (float[1,2,4,4] y) {
  [a] a = Conv(x, w1, b1)
  [ra] ra = Clip(a, zero, six)
  [b] b = Conv(ra, w2, b2)
  [rb] rb = LeakyRelu<alpha=0.1>(b)
  [sum] r = Add(ra, rb)
  [off] o = Add(r, offset)
  [cat] k = Concat<axis=1>(o, rb)
  [pool] p = AveragePool<kernel_shape=[2,2], strides=[2,2]>(k)
  [c] c = Conv(p, w3, b3)
  [rc] rc = Relu(c)
  [d] y = Conv(rc, w4, b4)
}"""


@pytest.fixture
def weights(floats) -> dict[str, np.ndarray]:
    shapes = {"w1": (4, 3, 1, 1), "w2": (4, 4, 1, 1), "w3": (5, 8, 1, 1), "w4": (2, 5, 1, 1)}
    found = {name: floats(*shape) for name, shape in shapes.items()}
    found |= {f"b{i}": floats(n) for i, n in ((1, 4), (2, 4), (3, 5), (4, 2))}
    found["offset"] = floats(1, 4, 1, 1)
    return found | {"zero": np.float32(0), "six": np.float32(0.6)}


def _rescaled(model, **factors: float):
    config = Rescaling(factors=factors)
    return implementation_of(config).apply(model, config, Context()).model


def test_tensors_between_layers_have_one_factor(normal, weights) -> None:
    model = normal(NETWORK, weights)

    groups = FactorGroups.of(model.graph)

    found = [set(group.names) for group in groups.groups]
    assert found == [{"a", "ra", "b", "rb", "r", "o", "k", "p"}, {"c", "rc"}]
    assert [layer.node.name for layer in groups.layers] == ["a", "b", "c", "d"]


def test_the_float_network_stays_what_it_is(normal, run, floats, weights) -> None:
    model = normal(NETWORK, weights)
    x = floats(1, 3, 8, 8)

    after = _rescaled(model, rb=1.7, c=0.3)

    before, now = (run(m, {"x": x}) for m in (model, after))
    np.testing.assert_allclose(now["y"], before["y"], rtol=1e-4, atol=1e-4)
    constants = {node.name: node.inputs for node in after.graph}
    bound = constants["ra"][2].const_value.numpy()
    np.testing.assert_allclose(bound, 1.7 * 0.6, rtol=1e-6)
    np.testing.assert_allclose(
        constants["off"][1].const_value.numpy(), 1.7 * weights["offset"], rtol=1e-6
    )
    ratio = constants["c"][1].const_value.numpy() / weights["w3"]
    np.testing.assert_allclose(ratio, 0.3 / 1.7, rtol=1e-5)


def test_each_tensor_is_multiplied_by_its_factor(normal, run, floats, weights) -> None:
    model = normal(NETWORK, weights)
    x = floats(1, 3, 8, 8)
    names = ["ra", "k", "p", "rc"]

    after = _rescaled(model, ra=0.8, rc=1.25)

    plain, now = (run(with_outputs(m, names), {"x": x}) for m in (model, after))
    for name, factor in zip(names, (0.8, 0.8, 0.8, 1.25), strict=True):
        np.testing.assert_allclose(now[name], factor * plain[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[rc] rc = Relu(c)", "[rc] rc = Sigmoid(c)"),
        ("[rc] rc = Relu(c)", "[rc] rc = Mul(c, c)"),
        ("[rc] rc = Relu(c)", "[rc] rc = Softmax<axis=1>(c)"),
        ("[rc] rc = Relu(c)", "[rc] rc = Clip(c, low, six)"),
    ],
)
def test_other_operators_let_no_factor_through(normal, weights, old: str, new: str) -> None:
    model = normal(NETWORK.replace(old, new), {**weights, "low": np.float32(-1)})

    found = [name for group in FactorGroups.of(model.graph).groups for name in group.names]

    assert "ra" in found
    assert "c" not in found
    assert "rc" not in found


def test_layers_that_share_weights_take_no_factor(normal, weights) -> None:
    twice = NETWORK.replace(
        "[b] b = Conv(ra, w2, b2)", "[b] b = Conv(ra, w2, b2)\n  [e] e = Conv(b, w2, b2)"
    )
    model = normal(twice.replace("LeakyRelu<alpha=0.1>(b)", "LeakyRelu<alpha=0.1>(e)"), weights)

    found = [set(group.names) for group in FactorGroups.of(model.graph).groups]

    assert found == [{"c", "rc"}]


def test_inputs_and_outputs_of_the_model_keep_their_numbers(normal, run, floats, weights) -> None:
    model = normal(
        NETWORK.replace("(float[1,2,4,4] y)", "(float[1,2,4,4] y, float[1,5,4,4] rc)"), weights
    )
    x = floats(1, 3, 8, 8)

    after = _rescaled(model, x=2.0, rc=3.0, y=5.0)

    np.testing.assert_allclose(run(after, {"x": x})["rc"], run(model, {"x": x})["rc"], rtol=1e-6)


def test_a_clip_is_implied_by_a_range_that_ends_at_or_below_its_bound(normal, weights) -> None:
    graph = normal(NETWORK, weights).graph

    for high, implied in ((0.5, True), (0.6 - 1e-7, True), (0.61, False)):
        assert bool(saturated_clips(graph, {"ra": (-high, high)})) is implied
    assert not saturated_clips(graph, {})
