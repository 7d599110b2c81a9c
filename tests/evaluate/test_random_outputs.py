"""Outputs that are drawn anew in each run are judged before the noise."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import lowbit
from lowbit.evaluate.output_kinds import find_measured, measured_tensors, seen_in
from lowbit.evaluate.random_outputs import before_noise, drawn_outputs, mark_drawn
from lowbit.graph import io
from lowbit.graph.naming import tensor_name

_SYNTHESIZER = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,16] x, float[1] strength) => (float[1,8] y, float[1,16] h) <float[16,16] w, float[16,8] v> {
    h = MatMul(x, w)
    n = RandomNormalLike(h)
    noise = Mul(n, strength)
    z = Add(h, noise)
    y = MatMul(z, v)
}"""


def _synthesizer() -> onnx.ModelProto:
    model = onnx.parser.parse_model(_SYNTHESIZER)
    rng = np.random.default_rng(0)
    weights = {"w": rng.normal(size=(16, 16)), "v": rng.normal(size=(16, 8))}
    del model.graph.initializer[:]
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(data.astype(np.float32) / 4, name)
        for name, data in weights.items()
    )
    return model


def _feeds(strength: float, count: int = 48) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    fixed = np.float32([strength])
    return [
        {"x": rng.normal(size=(1, 16)).astype(np.float32), "strength": fixed} for _ in range(count)
    ]


def test_only_outputs_after_the_noise_are_drawn() -> None:
    model = io.load(_synthesizer())

    mark_drawn(model, _feeds(1.0)[0])

    assert drawn_outputs(model) == ("y",)
    assert [tensor_name(v) for v in before_noise(model.graph.outputs[0])] == ["h"]
    assert measured_tensors(model) == ["y", "h"]


def test_noise_without_strength_draws_nothing() -> None:
    model = io.load(_synthesizer())

    mark_drawn(model, _feeds(0.0)[0])

    assert drawn_outputs(model) == ()


def test_a_drawn_output_is_measured_before_the_noise() -> None:
    model = io.load(_synthesizer())
    feed = _feeds(1.0)[0]
    mark_drawn(model, feed)
    values = {"y": np.ones((1, 8), np.float32), "h": feed["x"]}

    first, *_ = find_measured(model, seen_in([values]), {"y": "y", "h": "h"})

    assert (first.name, first.tensor) == ("y (before its noise)", "h")


@pytest.mark.parametrize(("strength", "words"), [(1.0, "draws random numbers"), (0.0, "")])
def test_a_model_that_draws_noise_is_not_taken_for_ruined(strength: float, words: str) -> None:
    result = lowbit.quantize(_synthesizer(), data=_feeds(strength), preset="A8W8", limit=16)

    assert result.report.verdict is not None
    assert result.report.verdict.level in {"good", "usable"}
    assert any(words in doubt for doubt in result.report.doubts) or not words
    assert any("draws random" in doubt for doubt in result.report.doubts) == bool(words)
