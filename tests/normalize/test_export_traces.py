"""What an exporter noted for its own developers is not in the normal form."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from lowbit.graph import io
from lowbit.normalize.export_traces import drop_export_traces, size_of_export_traces
from lowbit.normalize.normalize import normalize

TRACE = 'File "/home/someone/model.py", line 12, in forward'


@pytest.fixture
def exported() -> onnx.ModelProto:
    """An If in a model as PyTorch's newer exporter annotates it."""

    def noted(node: onnx.NodeProto) -> onnx.NodeProto:
        helper.set_metadata_props(
            node,
            {
                "pkg.torch.onnx.stack_trace": TRACE,
                "namespace": "top/block.0",
                "layer_ann": "gpu",
            },
        )
        return node

    value = helper.make_tensor_value_info
    floats = onnx.TensorProto.FLOAT
    branches = [
        helper.make_graph(
            [noted(helper.make_node(op, ["x"], [out]))], op, [], [value(out, floats, [2])]
        )
        for op, out in (("Relu", "a"), ("Abs", "b"))
    ]
    both = helper.make_node(
        "If", ["c"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1]
    )
    inputs = [value("x", floats, [2]), value("c", onnx.TensorProto.BOOL, [])]
    graph = helper.make_graph([noted(both)], "g", inputs, [value("y", floats, [2])])
    helper.set_metadata_props(graph.input[0], {"pkg.torch.onnx.original_node_name": "x"})
    helper.set_metadata_props(graph, {"pkg.torch.export.ExportedProgram.graph_signature": "x -> y"})
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, {"names": "{0: 'cat'}"})
    return model


def test_traces_go_and_what_others_noted_stays(exported) -> None:
    model = io.to_proto(normalize(io.load(exported)))

    written = model.SerializeToString()
    assert b"pkg." not in written
    assert b"namespace" not in written
    assert b"/home/someone" not in written
    assert [p.key for p in model.graph.node[0].metadata_props] == ["layer_ann"]
    assert {p.key: p.value for p in model.metadata_props} == {"names": "{0: 'cat'}"}
    assert model.graph.node[0].name == "choice"


def test_the_size_is_that_of_keys_and_texts(exported) -> None:
    model = io.load(exported)

    nodes = 3 * (
        len("pkg.torch.onnx.stack_trace") + len(TRACE) + len("namespace") + len("top/block.0")
    )
    others = len("pkg.torch.onnx.original_node_name") + len("x")
    others += len("pkg.torch.export.ExportedProgram.graph_signature") + len("x -> y")
    assert size_of_export_traces(model) == nodes + others
    drop_export_traces(model)
    assert size_of_export_traces(model) == 0
