"""Layers that share a small weight get one each, and the quantized file then loads in every session."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

import lowbit
from lowbit.ops.linear import has_constant_weight
from lowbit.transforms.rewrites import rewrite

# One kernel at two sizes, as in the heads of detectors, and what is much larger beside it.
NETWORK = """g (float[1,4,16,16] x) => (float[1,4,16,16] y, float[1,4,8,8] z, float[1,64,16,16] big) {
  [one] a = Conv<pads=[1,1,1,1]>(x, w)
  y = Relu(a)
  p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(y)
  [two] b = Conv<pads=[1,1,1,1]>(p, w)
  z = Relu(b)
  [large] c = Conv<pads=[1,1,1,1]>(y, v)
  big = Relu(c)
}"""


@pytest.fixture
def weights(floats) -> dict[str, np.ndarray]:
    return {"w": 0.3 * floats(4, 4, 3, 3), "v": 0.3 * floats(64, 4, 3, 3)}


def _weights(model) -> list[str]:
    return [str(n.inputs[1].name) for n in model.graph if has_constant_weight(n)]


def test_each_layer_has_its_own(normal, run, floats, weights) -> None:
    model = normal(NETWORK, weights)
    feed = {"x": floats(1, 4, 16, 16)}

    made = rewrite(model, ["separate_shared_weights"])

    assert _weights(model) == ["w", "w", "v"]
    assert len({*_weights(made)}) == 3
    before, after = run(model, feed), run(made, feed)
    for name in ("y", "z", "big"):
        np.testing.assert_array_equal(after[name], before[name])


def test_copies_must_be_small(normal, weights, monkeypatch) -> None:
    monkeypatch.setattr("lowbit.transforms.shared_weights._SMALL", 0)
    model = normal(NETWORK, {**weights, "v": weights["v"][:, :, :1, :1]})

    made = rewrite(model, ["separate_shared_weights"])

    assert _weights(made) == ["w", "w", "v"]


def test_what_stays_in_float_shares_on(normal, weights) -> None:
    model = normal(NETWORK, weights)

    made = rewrite(model, ["separate_shared_weights"], keep=["two"])

    assert _weights(made) == ["w", "w", "v"]


def test_nothing_is_copied_where_nothing_is_shared(normal, weights) -> None:
    model = normal(NETWORK.replace("Conv<pads=[1,1,1,1]>(p, w)", "Tanh(p)"), weights)

    assert rewrite(model, ["separate_shared_weights"]) is model


@pytest.mark.parametrize("preset", ["XINT8", "A8W8", "U8S8_PERCHANNEL"])
def test_a_session_with_exact_arithmetic_loads_it(
    normal, floats, weights, tmp_path, preset
) -> None:
    path = tmp_path / "int8.onnx"
    feeds = [{"x": floats(1, 4, 16, 16)} for _ in range(4)]
    model = ir.to_proto(normal(NETWORK, weights))
    lowbit.quantize(model, path, data=feeds, preset=preset)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")

    found = ort.InferenceSession(path, options).run(None, feeds[0])

    assert [array.shape for array in found] == [(1, 4, 16, 16), (1, 4, 8, 8), (1, 64, 16, 16)]


@pytest.mark.parametrize("preset", ["XINT8", "A8W8", "U8S8_PERCHANNEL"])
@pytest.mark.parametrize("shape", [(), (1, 4, 1, 1)])
def test_such_a_session_loads_constants_that_other_operators_share(
    normal, floats, run, tmp_path, preset, shape
) -> None:
    graph = """g (float[1,4,16,16] x) => (float[1,4,16,16] y) {
      [one] a = Conv<pads=[1,1,1,1]>(x, w)
      [first] b = Max(a, k)
      [two] c = Conv<pads=[1,1,1,1]>(b, v)
      [second] y = Max(c, k)
    }"""
    constants = {"w": 0.3 * floats(4, 4, 3, 3), "v": 0.3 * floats(4, 4, 3, 3)}
    model = normal(graph, {**constants, "k": np.full(shape, -0.4, np.float32)})
    path = tmp_path / "int8.onnx"
    feeds = [{"x": floats(1, 4, 16, 16)} for _ in range(4)]
    lowbit.quantize(ir.to_proto(model), path, data=feeds, preset=preset)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")

    (found,) = ort.InferenceSession(path, options).run(None, feeds[0])

    want = run(model, feeds[0])["y"]
    assert np.square(found - want).sum() < 0.01 * np.square(want).sum()
