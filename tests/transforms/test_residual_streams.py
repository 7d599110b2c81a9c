"""Residual streams are found by structure, and rotating them changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers.fused_models import fused_block
from helpers.runtime_versions import skip_before_opset

from lowbit.config.transforms import Rotation
from lowbit.errors import PlanError
from lowbit.graph.session import session
from lowbit.normalize.normalize import normalize
from lowbit.transforms.implementation import Context
from lowbit.transforms.residual_streams import find_residual_streams
from lowbit.transforms.rotation import Rotate

_FEED = {"ids": np.array([[1, 2, 3, 1]])}


def _decoder(norm: str) -> str:
    """Return a network of two residual branches between an embedding and a head."""
    return f"""g (int64[n,t] ids) => (float[n,t,12] y) {{
      s0 = Gather(table, ids)
      {_norm(norm, "s0", "a")}
      up = MatMul(a, w_up)
      act = Relu(up)
      down = MatMul(act, w_down)
      biased = Add(down, offset)
      s1 = Add(s0, biased)
      {_norm(norm, "s1", "b")}
      y = MatMul(b, w_head)
    }}"""


def _norm(kind: str, source: str, result: str) -> str:
    if kind == "LayerNormalization":
        return f"{result} = LayerNormalization({source}, scale, shift)"
    return f"""{result}2 = Mul({source}, {source})
      {result}m = ReduceMean<axes=[-1]>({result}2)
      {result}e = Add({result}m, eps)
      {result}r = Sqrt({result}e)
      {result}n = Div({source}, {result}r)
      {result}c = Cast<to=1>({result}n)
      {result} = Mul(scale, {result}c)"""


def _tables(floats: Callable) -> dict[str, np.ndarray]:
    shapes = {"table": (6, 8), "w_up": (8, 16), "w_down": (16, 8), "w_head": (8, 12)}
    made = {name: floats(*shape) for name, shape in shapes.items()}
    one = {name: floats(8) for name in ("scale", "shift", "offset")}
    return made | one | {"eps": np.float32(1e-5)}


def _used(text: str, tables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in tables.items() if name in text}


@pytest.mark.parametrize("norm", ["LayerNormalization", "rms"])
def test_the_stream_of_a_decoder_is_found_and_rotated(normal, floats, norm: str) -> None:
    text = _decoder(norm)
    model = normal(text, _used(text, _tables(floats)), opset=17)

    (found,) = find_residual_streams(model.graph)
    turned = Rotate().apply(model, Rotation(), Context(data=[_FEED]))

    assert found.size == 8
    layers = {node.outputs[0].name: node.name for node in model.graph}
    consumers = {name for stream in found.streams for name in stream.consumers}
    assert consumers == {layers["up"], layers["y"]}
    producers = {name for stream in found.streams for name in stream.producers}
    assert {layers["s0"], layers["down"]} <= producers
    assert "rotated 8 channels" in turned.notes[0]
    before, after = (_stream(each) for each in (model, turned.model))
    assert not np.allclose(before, after, atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(before), np.linalg.norm(after), rtol=1e-4)


def _stream(model: ir.Model) -> np.ndarray:
    with session(model, ["s1"]) as running:
        return running.run(["s1"], _FEED)[0].copy()


def test_a_stream_that_something_else_reads_is_left_alone(normal, floats) -> None:
    text = _decoder("rms").replace(
        "up = MatMul(a, w_up)", "t = Tanh(s0) u = Add(a, t) up = MatMul(u, w_up)"
    )
    model = normal(text, _used(text, _tables(floats)), opset=17)

    assert find_residual_streams(model.graph) == []
    with pytest.raises(PlanError, match=r"no residual stream was found .* name its layers"):
        Rotate().apply(model, Rotation(), Context())


def _with_embedding(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a fused block between an embedding and a head."""
    random = np.random.default_rng(0)
    table, head = (random.normal(size=(16, 16)).astype(np.float32) for _ in range(2))
    graph = model.graph
    graph.node.insert(0, onnx.helper.make_node("Gather", ["table", "ids"], ["x"], "x"))
    del graph.input[:]
    graph.input.append(onnx.helper.make_tensor_value_info("ids", 7, ["n", "t"]))
    graph.node[-1].output[0] = "last"
    norm = (
        "RMSNormalization"
        if model.opset_import[0].version >= 23
        else "SimplifiedLayerNormalization"
    )
    attributes = {} if norm[0] == "R" else {"axis": -1, "epsilon": 1e-5}
    graph.node.append(onnx.helper.make_node(norm, ["last", "scale"], ["end"], "end", **attributes))
    graph.node.append(onnx.helper.make_node("MatMul", ["end", "head"], ["y"], "head"))
    graph.initializer.extend(
        onnx.numpy_helper.from_array(a, n) for n, a in (("table", table), ("head", head))
    )
    return model


@pytest.mark.parametrize("kind", ["llama", "standard"])
def test_streams_through_fused_operators_are_found(kind: str) -> None:
    block = fused_block(kind)
    skip_before_opset(max(i.version for i in block.opset_import if not i.domain))
    model = normalize(ir.from_proto(_with_embedding(block)))

    (found,) = find_residual_streams(model.graph)
    # It raises if what the model computes changes.
    Rotate().apply(model, Rotation(), Context(data=[_FEED]))

    producers = {name for stream in found.streams for name in stream.producers}
    consumers = {name for stream in found.streams for name in stream.consumers}
    assert producers == {"x", "out", "down"}
    assert consumers == {"query", "key", "value", "gate", "up", "head"}
