import numpy as np
import onnx_ir as ir

from lowbit.graph.session import session
from lowbit.transforms.float_reference import side_by_side
from lowbit.transforms.rewrites import adapt

SWISH = """
<ir_version: 8, opset_import: ["": 17]>
g (float[1,2,4,4] x) => (float[1,2,4,4] out)
<float[2,2,1,1] w1 = {2.0, -1.0, 0.5, 3.0}, float[2,2,1,1] w2 = {1.0, 0.5, -1.0, 2.0}>
{
  c1 = Conv <kernel_shape=[1,1]> (x, w1)
  s1 = Sigmoid (c1)
  m1 = Mul (c1, s1)
  c2 = Conv <kernel_shape=[1,1]> (m1, w2)
  out = Relu (c2)
}
"""


def _named(text: str) -> ir.Model:
    model = ir.from_onnx_text(text)
    for index, node in enumerate(model.graph):
        node.name = node.name or f"n{index}"
    return model


def _run(model: ir.Model, names: list[str], x: np.ndarray) -> dict[str, np.ndarray]:
    with session(model, names) as running:
        return dict(zip(names, running.run(names, {"x": x}), strict=True))


def test_layers_read_float_values_and_replaced_operators_the_layers_outputs() -> None:
    shaped = _named(SWISH)
    adapted = adapt(shaped, ["sigmoid_to_hardsigmoid"])
    x = np.random.default_rng(0).normal(0, 2, (1, 2, 4, 4)).astype(np.float32)

    pair = side_by_side(shaped, adapted)

    float_values = _run(shaped, ["c1", "m1", "c2"], x)
    found = _run(pair.model, ["c1", "m1", pair.twins["m1"], "c2", "out"], x)
    gate = np.clip(float_values["c1"] / 6 + 0.5, 0, 1)
    np.testing.assert_allclose(found["m1"], float_values["c1"] * gate, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[pair.twins["m1"]], float_values["m1"])
    np.testing.assert_array_equal(found["c2"], float_values["c2"])


def test_only_what_differs_before_the_next_layer_has_a_twin() -> None:
    shaped = _named(SWISH)

    pair = side_by_side(shaped, adapt(shaped, ["sigmoid_to_hardsigmoid"]))

    assert set(pair.twins) == {"s1", "m1"}


def test_the_same_graph_has_no_twins_and_stays_as_it_is() -> None:
    shaped = _named(SWISH)

    pair = side_by_side(shaped, adapt(shaped, ["hardsigmoid_factor"]))

    assert pair.twins == {}
    assert pair.model.graph.num_nodes() == shaped.graph.num_nodes()


def test_constants_that_only_the_float_model_has_come_along() -> None:
    shaped = _named(
        """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,2,4,4] x) => (float[1,2,4,4] c)
        <float[2,2,1,1] w = {2.0, -1.0, 0.5, 3.0}, float low = {0.0}, float high = {6.0}>
        {
          r = Clip (x, low, high)
          c = Conv <kernel_shape=[1,1]> (r, w)
        }
        """
    )
    adapted = adapt(shaped, ["clip_to_relu"])
    for name in ("low", "high"):
        del adapted.graph.initializers[name]
    x = np.full((1, 2, 4, 4), 9.0, np.float32)

    pair = side_by_side(shaped, adapted)

    found = _run(pair.model, ["r", pair.twins["r"], "c"], x)
    assert found["r"].max() == 9.0
    assert found[pair.twins["r"]].max() == 6.0
    np.testing.assert_array_equal(found["c"], _run(shaped, ["c"], x)["c"])
