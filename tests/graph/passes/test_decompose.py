from __future__ import annotations

import onnx
import onnx_ir as ir

from lowbit.graph import io
from lowbit.graph.naming import names_of
from lowbit.normalize.normalize import normalize


def test_hardswish_is_a_gate_and_a_product(parse, floats, run) -> None:
    text = "g (float[64] x) => (float[64] y) {{ {} }}"
    original = parse(text.format("[act] h = HardSwish(x) [neg] y = Neg(h)"))
    x = 3 * floats(64)

    normal = normalize(io.load(original))

    assert [n.op_type for n in normal.graph] == ["HardSigmoid", "Mul", "Neg"]
    assert normal.graph[1].name == "act"
    assert normal.graph[1].outputs[0].name == "h"
    assert all("act" in names_of(n) for n in list(normal.graph)[:2])
    onnx.checker.check_model(ir.to_proto(normal), full_check=True)
    expected = -x * (x / 6 + 0.5).clip(0, 1)
    assert abs(run(normal, {"x": x})[0] - expected).max() < 1e-5


def test_hardswish_may_write_the_output(parse, floats, run) -> None:
    original = parse("g (float[64] x) => (float[64] y) { y = HardSwish(x) }")
    x = 3 * floats(64)

    normal = normalize(io.load(original))

    assert [v.name for v in normal.graph.outputs] == ["y"]
    assert abs(run(normal, {"x": x})[0] - x * (x / 6 + 0.5).clip(0, 1)).max() < 1e-5
