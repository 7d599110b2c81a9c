"""A small decoder layer with a cache of keys, as two calls of it see it."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

_RANDOM = np.random.default_rng(3)
_TEXT = """<ir_version: 9, opset_import: ["": 17]>
g (float[N,L,64] x, float[N,1,P,64] past_key_0) => (float[N,L,64] y, float[N,1,T,64] present_key_0)
<float[64,64] wk, float[64,64] wo, int64[1] one = {1}> {
    k = MatMul(x, wk)
    k4 = Unsqueeze(k, one)
    present_key_0 = Concat<axis=2>(past_key_0, k4)
    x4 = Unsqueeze(x, one)
    turned = Transpose<perm=[0,1,3,2]>(present_key_0)
    scores = MatMul(x4, turned)
    p = Softmax<axis=-1>(scores)
    mixed = MatMul(p, present_key_0)
    flat = Squeeze(mixed, one)
    y = MatMul(flat, wo)
}"""


def cached_model() -> onnx.ModelProto:
    """Return the layer; its output depends on all keys so far."""
    model = onnx.parser.parse_model(_TEXT)
    kept = [t for t in model.graph.initializer if t.name == "one"]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    random = np.random.default_rng(7)
    for name in ("wk", "wo"):
        data = (random.normal(size=(64, 64)) / 8).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    return model


def cached_feeds(count: int = 4) -> list[dict[str, np.ndarray]]:
    """Return feeds whose caches are empty."""
    return [
        {
            "x": _RANDOM.normal(size=(1, 5, 64)).astype(np.float32),
            "past_key_0": np.zeros((1, 1, 0, 64), np.float32),
        }
        for _ in range(count)
    ]


def run_calls(
    model: onnx.ModelProto, x: np.ndarray, cuts: tuple[int, ...], dtype: type[np.generic]
) -> tuple[np.ndarray, np.ndarray]:
    """Return all outputs of a sequence in several calls, and the last cache."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    cache, found = np.zeros((1, 1, 0, 64), dtype), []
    for start, end in itertools.pairwise(cuts):
        y, cache = session.run(["y", "present_key_0"], {"x": x[:, start:end], "past_key_0": cache})
        found.append(y)
    return np.concatenate(found, axis=1), cache
