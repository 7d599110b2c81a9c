"""Sizes that share a name and nothing else are unnamed, so that no memory is shared for it."""

from __future__ import annotations

import numpy as np
import onnx.helper
import onnx.parser
import pytest

from lowbit.graph import io
from lowbit.graph.session import Feed, session
from lowbit.normalize.normalize import normalize

_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[{0}, {0}] a, float[{0}, {0}] b) => (float[{0}, {0}] y, float[{0}, {0}] z) {{
    c = Relu(a)
    d = Relu(b)
    y = Exp(c)
    z = Exp(d)
}}
"""


def _feed() -> Feed:
    return {"a": np.ones((2, 8), np.float32), "b": np.ones((2, 3), np.float32)}


def _names(text: str, sample: Feed | None) -> set[str | None]:
    model = normalize(io.load(onnx.parser.parse_model(text)), sample)
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    return {dim.value for v in values if v.shape is not None for dim in v.shape}


@pytest.mark.parametrize("with_sample", [True, False])
def test_what_is_no_name_is_forgotten(with_sample: bool) -> None:
    model = onnx.parser.parse_model(_TEXT.format("N"))
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = "?"

    found = normalize(io.load(model), _feed() if with_sample else None)

    with session(found, ["y", "z"], name="it") as running:
        assert [a.shape for a in running.run(["y", "z"], _feed())] == [(2, 8), (2, 3)]
    values = [*found.graph.inputs, *found.graph.outputs]
    assert "?" not in {dim.value for v in values if v.shape is not None for dim in v.shape}


def test_what_is_no_name_stays_where_one_size_of_inputs_and_outputs_has_it() -> None:
    model = onnx.parser.parse_model(_TEXT.format("N"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "?"
    model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, ["?", "N"])
    )

    found = normalize(
        io.load(model), {"a": np.ones((2, 4), np.float32), "b": np.ones((4, 4), np.float32)}
    )

    assert [str(v.shape) for v in found.graph.inputs] == ["[?,N]", "[N,N]"]
    by_name = {v.name: v.shape for node in found.graph for v in node.outputs}
    assert "?" not in {dim.value for dim in by_name["d"]}  # which has another size


def test_a_name_that_a_sample_contradicts_is_forgotten() -> None:
    assert "N" not in _names(_TEXT.format("N"), _feed())


def test_a_name_that_holds_is_kept() -> None:
    sample = {"a": np.ones((4, 4), np.float32), "b": np.ones((4, 4), np.float32)}

    assert _names(_TEXT.format("N"), sample) == {"N"}
    assert _names(_TEXT.format("N"), None) == {"N"}
