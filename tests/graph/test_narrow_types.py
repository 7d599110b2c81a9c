"""Types that onnxruntime and NumPy do not exchange, there and back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from lowbit.graph import io
from lowbit.graph.narrow_types import narrow_type
from lowbit.graph.session import session


def casts(kind: ir.DataType) -> ir.Model:
    """Return a model that converts an input of a type to float, and a float to that type."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Cast", ["x"], ["f"], to=1),
        helper.make_node("Cast", ["y"], ["n"], to=int(kind)),
    ]
    if kind.is_integer():  # older versions of onnxruntime cast no 4-bit integers
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "one"], ["f"]),
            helper.make_node("QuantizeLinear", ["y", "one"], ["n"], output_dtype=int(kind)),
        ]
    graph = helper.make_graph(
        nodes,
        "casts",
        [info("x", int(kind), [3, "n"]), info("y", 1, [3, "n"])],
        [info("f", 1, [3, "n"]), info("n", int(kind), [3, "n"])],
        [helper.make_tensor("one", 1, [], [1.0])],
    )
    opsets = [helper.make_opsetid("", 21)]
    return io.load(helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.mark.parametrize("columns", [3, 4, 0])
@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "INT4", "UINT4"])
def test_values_go_in_and_come_out(name: str, columns: int) -> None:
    kind = ir.DataType[name]
    numbers = (np.arange(3 * columns).reshape(3, columns) % 7).astype(np.float32)
    narrow = numbers.astype(kind.numpy())

    with session(casts(kind)) as running:
        once = running.run(["f", "n"], {"x": narrow, "y": numbers})
        again = running.repeated(["f", "n"])({"x": narrow, "y": numbers})

    for found in (once, again):
        np.testing.assert_array_equal(found[0], narrow.astype(np.float32))
        np.testing.assert_array_equal(found[1].astype(np.float32), narrow.astype(np.float32))
        assert found[1].dtype == narrow.dtype


@pytest.mark.parametrize("text", ["tensor(float)", "tensor(uint16)", "seq(tensor(float))"])
def test_what_numpy_has_is_not_narrow(text: str) -> None:
    assert narrow_type(text) is None


def test_names_are_those_of_onnxruntime() -> None:
    assert narrow_type("tensor(bfloat16)") is ir.DataType.BFLOAT16
    assert narrow_type("tensor(float8e4m3fn)") is ir.DataType.FLOAT8E4M3FN
