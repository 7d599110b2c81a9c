import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.token_models import token_model
from onnx import TensorProto, helper, numpy_helper

from lowbit.graph import io
from lowbit.normalize.normalize import normalize
from lowbit.ops.weights import WeightInput, is_embedding, weight_inputs


def _nodes(model: onnx.ModelProto) -> dict[str, ir.Node]:
    return {node.name or "": node for node in normalize(io.load(model)).graph}


def test_linear_layers_and_embeddings_have_weights_and_nothing_else_has() -> None:
    nodes = _nodes(token_model(gemm=True))

    found = {name: weight_inputs(node) for name, node in nodes.items()}

    assert {name for name, weights in found.items() if weights} == {
        "embed",
        "embed_kind",
        "up_proj",
        "down_proj",
        "head",
    }
    assert found["embed"] == (WeightInput(0, 0, 1),)
    assert found["up_proj"] == (WeightInput(1, -1, -2),)
    assert found["head"] == (WeightInput(1, 0, 1),)
    assert is_embedding(nodes["embed"])
    assert not is_embedding(nodes["head"])


def _gather(table: np.ndarray, axis: int) -> ir.Node:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["t", "i"], ["y"], "g", axis=axis)],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(table, "t")],
    )
    return _nodes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))["g"]


@pytest.mark.parametrize(
    ("table", "axis", "is_table"),
    [
        (np.zeros((4, 8), np.float32), 0, True),
        (np.zeros((4, 8), np.float32), 1, False),
        (np.zeros((4, 8), np.int64), 0, False),
        (np.zeros(8, np.float32), 0, False),
    ],
)
def test_an_embedding_picks_rows_of_a_float_matrix(
    table: np.ndarray, axis: int, *, is_table: bool
) -> None:
    assert is_embedding(_gather(table, axis)) == is_table


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_have_two_weights(kind: str, gates: int) -> None:
    weights = {"w": (1, gates * 5, 3), "r": (1, gates * 5, 5)}
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "w", "r"], ["y"], "cell", hidden_size=5)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(s, np.float32), n) for n, s in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])

    found = weight_inputs(_nodes(model)["cell"])

    assert found == (WeightInput(1, 1, 2), WeightInput(2, 1, 2))
