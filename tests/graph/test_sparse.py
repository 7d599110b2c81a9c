from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import lowbit
from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.sparse import without_sparse

GRAPH = "g (float[2,4] x) => (float[2,4] y) { m = MatMul(x, w) r = Relu(m) y = MatMul(r, v) }"


def _sparse(name: str, *, flat: bool, shape=(4, 4)) -> onnx.SparseTensorProto:
    places = np.int64([1, 6, 15]) if flat else np.int64([[0, 1], [1, 2], [3, 3]])
    values = numpy_helper.from_array(np.float32([1, -2, 3]), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(places, "at"), shape)


@pytest.fixture
def sparse(parse, floats):
    def make(*, flat: bool = True) -> onnx.ModelProto:
        model = parse(GRAPH, {"v": floats(4, 4)})
        model.graph.sparse_initializer.append(_sparse("w", flat=flat))
        return model

    return make


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_weights_become_dense(sparse, run, floats, flat) -> None:
    model = sparse(flat=flat)
    before = model.SerializeToString()

    loaded = io.load(model)

    feed = {"x": floats(2, 4)}
    expected = run(model, feed)  # onnxruntime's own reading of it
    np.testing.assert_allclose(run(io.to_proto(loaded), feed)[0], expected[0], rtol=1e-6)
    assert model.SerializeToString() == before


@pytest.mark.parametrize("preset", ["A8W8", "W8"])
def test_sparse_weights_are_quantized(sparse, floats, preset) -> None:
    data = [{"x": floats(2, 4)} for _ in range(4)]

    result = lowbit.quantize(sparse(), data=data, preset=preset)

    assert "w" in result.plan.by_name()


def test_sparse_constants_in_a_branch_become_dense(parse) -> None:
    model = parse(
        """g (bool p) => (float[4,4] y) {
          y = If(p) <
            then_branch = t () => (float[4,4] a) { a = ConstantOfShape(four) },
            else_branch = e () => (float[4,4] b) { [thin] b = Constant<value_floats=[1.0, 2.0]>() }
          >
        }""",
        {"four": np.array([4, 4])},
    )
    node = model.graph.node[0].attribute[1].g.node[0]
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("sparse_value", _sparse("b", flat=False)))

    branch = io.load(model).graph[0].attributes["else_branch"].as_graph()

    expected = np.zeros((4, 4))
    expected[0, 1], expected[1, 2], expected[3, 3] = 1, -2, 3
    np.testing.assert_array_equal(branch[0].attributes["value"].as_tensor().numpy(), expected)


def test_a_model_without_any_is_not_copied(parse, floats) -> None:
    model = parse(GRAPH, {"w": floats(4, 4), "v": floats(4, 4)})

    assert without_sparse(model, "m") is model


@pytest.mark.parametrize(
    ("values", "places", "shape", "said"),
    [
        ([1, 2], [0, 99], (4, 4), "cannot be read"),
        ([1, 2], [0, -1], (4, 4), "places"),
        ([1, 2], [0], (4, 4), "places"),
        ([1, 2], [0, 1], (1 << 20, 1 << 20), "too large to be made dense"),
    ],
)
def test_sparse_weights_that_are_wrong_are_refused(
    parse, floats, values, places, shape, said
) -> None:
    model = parse(GRAPH, {"v": floats(4, 4)})
    made = model.graph.sparse_initializer.add(dims=shape)
    made.values.CopyFrom(numpy_helper.from_array(np.float32(values), "w"))
    made.indices.CopyFrom(numpy_helper.from_array(np.int64(places), "at"))

    with pytest.raises(ModelError, match=said):
        io.load(model)


def test_maps_are_named_with_the_way_out(parse, floats) -> None:
    model = parse(GRAPH, {"w": floats(4, 4), "v": floats(4, 4)})
    kind = helper.make_map_type_proto(
        onnx.TensorProto.INT64, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    )
    kind = helper.make_sequence_type_proto(kind)
    model.graph.value_info.append(helper.make_value_info("inner", kind))
    assert io.load(model).graph.outputs[0].name == "y"
    assert len(model.graph.value_info) == 1

    model.graph.output.append(helper.make_value_info("scores", kind))
    model.graph.node.append(
        helper.make_node("ZipMap", ["y"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[0])
    )
    with pytest.raises(ModelError, match=r"'scores' is a map.*zipmap"):
        io.load(model)
