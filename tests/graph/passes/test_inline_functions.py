from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from lowbit.errors import ModelError
from lowbit.graph import io
from lowbit.graph.naming import names_of
from lowbit.normalize.normalize import normalize


def ops(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


FUNCTIONS = """
<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[2,4] x) => (float[2,4] y) {
  [first] a = local.Act<slope=0.5>(x)
  [second] y = local.Act<slope=0.25>(a)
}
<domain: "local", opset_import: ["": VERSION, "local": 1]>
Act <slope> (v) => (r) {
  t = local.Shift(v)
  [leak] r = LeakyRelu<alpha: float = @slope>(t)
}
<domain: "local", opset_import: ["": VERSION]>
Shift (v) => (r) {
  one = Constant<value_float=-1.0>()
  r = Add(v, one)
}
"""


def test_functions_are_inlined(floats, assert_same) -> None:
    original = onnx.parser.parse_model(FUNCTIONS.replace("VERSION", "17"))

    normal = normalize(io.load(original))

    assert ops(normal) == ["Add", "LeakyRelu", "Add", "LeakyRelu"]
    assert not normal.functions
    assert [n.name for n in normal.graph if n.op_type == "LeakyRelu"] == [
        "first/leak",
        "second/leak_2",
    ]
    assert ["first" in names_of(n) for n in normal.graph] == [True, True, False, False]
    assert_same(original, normal, {"x": floats(2, 4)})


def test_functions_of_another_operator_set_are_refused() -> None:
    original = onnx.parser.parse_model(FUNCTIONS.replace("VERSION", "16"))

    with pytest.raises(ModelError, match=r"functions cannot be inlined \(Opset mismatch"):
        normalize(io.load(original))
