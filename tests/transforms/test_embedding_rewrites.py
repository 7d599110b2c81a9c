from collections.abc import Callable

import numpy as np
import pytest

from lowbit.transforms.rewrites import rewrite

_RANDOM = np.random.default_rng(0)
_TABLES = {
    "words": _RANDOM.normal(size=(20, 8)).astype(np.float32),
    "places": _RANDOM.normal(size=(16, 8)).astype(np.float32),
    "kinds": _RANDOM.normal(size=(2, 8)).astype(np.float32),
    "gamma": _RANDOM.uniform(0.5, 2, 8).astype(np.float32),
    "beta": _RANDOM.normal(size=8).astype(np.float32),
}
_FEED = {
    "ids": _RANDOM.integers(0, 20, (2, 5)).astype(np.int32),
    "types": _RANDOM.integers(0, 2, (2, 5)).astype(np.int32),
    "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    "at": _RANDOM.integers(0, 16, (2, 5)).astype(np.int32),
}


@pytest.mark.parametrize(
    ("inputs", "call"),
    [
        ("ids, types, mask", "ids, types, words, places, kinds, gamma, beta, mask"),
        ("ids, types", "ids, types, words, places, kinds, gamma, beta"),
        ("ids, mask", 'ids, "", words, places, "", gamma, beta, mask'),
        ("ids, types, mask, at", "ids, types, words, places, kinds, gamma, beta, mask, at"),
    ],
)
def test_the_fused_embedding_is_written_out(
    normal: Callable, run: Callable, inputs: str, call: str
) -> None:
    names = inputs.split(", ")
    given = ", ".join(f"int32[n,t] {name}" for name in names)
    model = normal(
        f"g ({given}) => (float[n,t,8] y, int32[n] m2, float[n,t,8] s) {{"
        f"y, m, s = com.microsoft.EmbedLayerNormalization<epsilon=1e-5>({call}) m2 = Neg(m) }}",
        {n: t for n, t in _TABLES.items() if n in call},
    )
    feed = {name: _FEED[name] for name in names}
    expected = run(model, feed)

    made = rewrite(model, ["embed_layer_norm_to_gather"])

    assert "EmbedLayerNormalization" not in {node.op_type for node in made.graph}
    found = run(made, feed)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["s"], expected["s"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found["m2"], expected["m2"])


def test_before_layer_normalization_came_it_stays(normal: Callable) -> None:
    model = normal(
        "g (int32[n,t] ids, int32[n,t] types) => (float[n,t,8] y) {"
        "y, m = com.microsoft.EmbedLayerNormalization(ids, types, words, places, kinds, gamma, beta) }",
        _TABLES,
        opset=16,
    )

    made = rewrite(model, ["embed_layer_norm_to_gather"])

    assert [node.op_type for node in made.graph] == ["EmbedLayerNormalization"]
