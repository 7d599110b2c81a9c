from __future__ import annotations

import onnx_ir as ir
import pytest

from lowbit.errors import ModelError
from lowbit.graph.onnx_passes import infer_types


def test_types_and_shapes_are_written_to_values(parse, floats) -> None:
    model = ir.from_proto(
        parse(
            "g (float[n,64] x) => (int64[n,1] y) { h = MatMul(x, w) y = ArgMax<axis=1>(h) }",
            {"w": floats(64, 32)},
        )
    )

    infer_types(model)

    h, y = (node.outputs[0] for node in model.graph)
    assert (h.dtype, y.dtype) == (ir.DataType.FLOAT, ir.DataType.INT64)
    assert [str(d) for d in h.shape] == ["n", "32"]


def test_one_unknown_operator_does_not_hide_the_rest(parse, floats) -> None:
    model = ir.from_proto(
        parse(
            """g (float[2,4] x) => (float[2,4] y) {
              u = com.microsoft.BiasGelu(x, b)
              h = Relu(x)
              y = Add(u, h)
            }""",
            {"b": floats(4)},
        )
    )

    infer_types(model)

    assert [node.outputs[0].dtype for node in model.graph][:2] == [None, ir.DataType.FLOAT]


def test_a_shape_that_cannot_be_leaves_the_others_known(parse, floats) -> None:
    """Strict inference gave up on the whole graph, and said so only in a log."""
    model = ir.from_proto(
        parse(
            "g (float[2,4] x) => (float[a,b] y) { h = Relu(x) y = MatMul(h, w) }",
            {"w": floats(3, 3)},
        )
    )

    infer_types(model)

    assert model.graph[0].outputs[0].shape.numpy() == (2, 4)


def test_a_failure_is_an_error(parse, monkeypatch) -> None:
    import onnx.shape_inference

    def fail(*_arguments, **_options) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    model = ir.from_proto(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"))

    with pytest.raises(ModelError, match="types and shapes cannot be inferred: broken"):
        infer_types(model)
