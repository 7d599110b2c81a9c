from __future__ import annotations

import onnx_ir as ir

from lowbit.graph.editing import is_sorted

_MODEL = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (float[2] x) => (float[2] y) {
    a = Relu (x)
    b = Neg (a)
    y = Add (a, b)
}
"""

_BRANCH = """
<ir_version: 8, opset_import: ["" : 17]>
agraph (bool c, float[2] x) => (float[2] y) {
    y = If (c) <then_branch = g () => (float[2] t) { t = Relu (x) },
                else_branch = h () => (float[2] e) { e = Neg (x) }>
}
"""


def test_a_graph_in_order_is_sorted() -> None:
    assert is_sorted(ir.from_onnx_text(_MODEL).graph)


def test_a_reader_before_what_it_reads_is_not() -> None:
    graph = ir.from_onnx_text(_MODEL).graph
    first = graph[0]
    graph.remove(first)
    graph.append(first)

    assert not is_sorted(graph)

    graph.sort()
    assert is_sorted(graph)


def test_what_a_branch_reads_is_not_looked_for() -> None:
    assert not is_sorted(ir.from_onnx_text(_BRANCH).graph)
