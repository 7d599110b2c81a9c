"""What is written for a session computes what the model does, with further outputs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from lowbit.graph.naming import name_everything
from lowbit.graph.session_files import is_plain, write_plain

# Not a multiple of a cache line, so that what follows has to be aligned.
ROWS = 1025


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w": rng.standard_normal((ROWS, 3), dtype=np.float32),
        "v": rng.standard_normal((3, ROWS), dtype=np.float32),
        "b": np.array([1, 2, 3], np.float32),
    }


def load(text: str, weights: dict[str, np.ndarray]) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    proto.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    model = ir.from_proto(proto)
    name_everything(model)
    return model


@pytest.fixture
def model(weights) -> ir.Model:
    text = f"""g (float[2,{ROWS}] x) => (float[2,{ROWS}] y) {{
      m = MatMul(x, w)
      a = Add(m, b)
      r = Relu(a)
      y = MatMul(r, v)
    }}"""
    return load(text, weights)


def test_a_session_gives_outputs_and_the_values_asked_for(model, weights, tmp_path) -> None:
    inside = [value for node in model.graph for value in node.outputs if value.name in {"m", "r"}]

    path = write_plain(model, inside, tmp_path)

    x = np.random.default_rng(1).standard_normal((2, ROWS), dtype=np.float32)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    y, m, r = session.run(["y", "m", "r"], {"x": x})
    np.testing.assert_allclose(m, x @ weights["w"], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(r, np.maximum(m + weights["b"], 0), rtol=1e-6)
    np.testing.assert_allclose(y, r @ weights["v"], rtol=1e-3, atol=1e-3)
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_large_weights_are_beside_the_graph_each_on_a_cache_line(model, weights, tmp_path) -> None:
    proto = onnx.load(write_plain(model, [], tmp_path), load_external_data=False)

    entries = {t.name: {e.key: e.value for e in t.external_data} for t in proto.graph.initializer}
    assert entries["b"] == {}
    data = (tmp_path / entries["w"]["location"]).read_bytes()
    for name in ("w", "v"):
        start, length = (int(entries[name][key]) for key in ("offset", "length"))
        assert start % 64 == 0
        assert data[start : start + length] == weights[name].tobytes()


def test_types_that_only_the_model_knows_are_written(tmp_path) -> None:
    graph = "g (float[4] x) => (float[4] y) {{ h = {domain}Gelu(x)  y = Relu(h) }}"
    text = f'<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]> {graph}'
    for domain, given in (("com.microsoft.", ["h"]), ("", [])):
        model = ir.from_proto(onnx.parser.parse_model(text.format(domain=domain)))
        for node in model.graph:
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)

        proto = onnx.load(write_plain(model, [], tmp_path))

        assert [value.name for value in proto.graph.value_info] == given


BRANCHES = """g (bool c, float[3] x) => (float[3] y) {
  y = If(c) <
    then_branch = t () => (float[3] p) { p = Relu(x) },
    else_branch = e () => (float[3] q) { q = Abs(x) }
  >
}"""


def test_a_model_with_graphs_inside_is_not_plain(model) -> None:
    assert is_plain(model)
    assert not is_plain(load(BRANCHES, {}))


def test_texts_are_not_plain(model) -> None:
    value = ir.val("t", const_value=ir.StringTensor([b"a"], shape=ir.Shape([1]), name="t"))
    model.graph.register_initializer(value)
    assert not is_plain(model)


def test_two_values_of_one_name_are_not_plain(model) -> None:
    first, second, *_ = (node.outputs[0] for node in model.graph)
    second.name = first.name
    assert not is_plain(model)
