import numpy as np
import onnx_ir as ir

from lowbit.graph.session import session
from lowbit.transforms.float_reference import with_reference
from lowbit.transforms.rewrites import rewrite

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
    adapted = rewrite(shaped, ["sigmoid_to_hardsigmoid"])
    x = np.random.default_rng(0).normal(0, 2, (1, 2, 4, 4)).astype(np.float32)

    pair = with_reference(shaped, adapted)

    float_values = _run(shaped, ["c1", "m1", "c2"], x)
    found = _run(pair.model, ["c1", "m1", pair.float_names["m1"], "c2", "out"], x)
    gate = np.clip(float_values["c1"] / 6 + 0.5, 0, 1)
    np.testing.assert_allclose(found["m1"], float_values["c1"] * gate, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[pair.float_names["m1"]], float_values["m1"])
    np.testing.assert_array_equal(found["c2"], float_values["c2"])


def test_only_values_that_differ_before_the_next_layer_have_a_counterpart() -> None:
    shaped = _named(SWISH)

    pair = with_reference(shaped, rewrite(shaped, ["sigmoid_to_hardsigmoid"]))

    assert set(pair.float_names) == {"s1", "m1"}


def test_the_same_graph_has_no_counterparts_and_stays_as_it_is() -> None:
    shaped = _named(SWISH)

    pair = with_reference(shaped, rewrite(shaped, ["hardsigmoid_factor"]))

    assert pair.float_names == {}
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
    adapted = rewrite(shaped, ["clip_to_relu"])
    for name in ("low", "high"):
        del adapted.graph.initializers[name]
    x = np.full((1, 2, 4, 4), 9.0, np.float32)

    pair = with_reference(shaped, adapted)

    found = _run(pair.model, ["r", pair.float_names["r"], "c"], x)
    assert found["r"].max() == 9.0
    assert found[pair.float_names["r"]].max() == 6.0
    np.testing.assert_array_equal(found["c"], _run(shaped, ["c"], x)["c"])


def test_operators_without_some_of_their_inputs_are_copied() -> None:
    shaped = _named(
        """
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,2,4,4] x) => (float[1,2,4,4] out)
        <float[2,2,1,1] w = {2.0, -1.0, 0.5, 3.0}, float high = {0.6}>
        {
          s = Sigmoid (x)
          r = Clip (s, , high)
          c = Conv <kernel_shape=[1,1]> (r, w)
          out = Relu (c)
        }
        """
    )
    x = np.random.default_rng(1).normal(0, 2, (1, 2, 4, 4)).astype(np.float32)

    pair = with_reference(shaped, rewrite(shaped, ["sigmoid_to_hardsigmoid"]))

    found = _run(pair.model, ["r", pair.float_names["r"], "out"], x)
    np.testing.assert_allclose(found["r"], np.clip(x / 6 + 0.5, 0, 0.6), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        found[pair.float_names["r"]], np.minimum(1 / (1 + np.exp(-x)), np.float32(0.6)), rtol=1e-5
    )
    np.testing.assert_array_equal(found["out"], _run(shaped, ["out"], x)["out"])


def test_what_only_the_float_model_computes_is_computed_beside() -> None:
    shaped = rewrite(_named(SWISH), ["swish_gain"])
    adapted = rewrite(shaped, ["sigmoid_to_hardsigmoid"])
    x = np.random.default_rng(0).normal(0, 2, (1, 2, 4, 4)).astype(np.float32)

    pair = with_reference(shaped, adapted)

    name = pair.float_names["m1"]
    np.testing.assert_array_equal(_run(pair.model, [name], x)[name], _run(shaped, ["m1"], x)["m1"])
    assert len(adapted.graph) < len(shaped.graph)


def test_what_has_graphs_reads_float_values_and_is_not_copied() -> None:
    # Its body reads values of the graph around it, of which a copy would know nothing.
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    g (float[1,2] x, bool c) => (float[1,2] out)
    <float[2,2] w = {2.0, -1.0, 0.5, 3.0}>
    {
      y = MatMul (x, w)
      s = Sigmoid (y)
      z = If (c) <
        then_branch = a () => (float[1,2] p) { p = Add (s, s) },
        else_branch = b () => (float[1,2] q) { q = Mul (s, s) }
      >
      out = Sigmoid (z)
    }
    """
    shaped = _named(text)
    adapted = rewrite(shaped, ["sigmoid_to_hardsigmoid"])

    pair = with_reference(shaped, adapted)

    names = ["y", pair.float_names["s"], pair.float_names["out"]]
    feed = {"x": np.float32([[0.3, -1.2]]), "c": np.array(True)}
    with session(pair.model.clone(), names) as running:
        y, gate, out = running.run(names, feed)
    np.testing.assert_allclose(gate, 1 / (1 + np.exp(-y)), rtol=1e-5)
    assert out.shape == (1, 2)
    assert not any(
        node.op_type == "If" and "__float" in str(node.name) for node in pair.model.graph
    )
