from __future__ import annotations

import math

import numpy as np
import onnx.parser
import pytest

from lowbit.evaluate.judge import Judge
from lowbit.graph import io


def _model(graph: str):
    header = '<ir_version: 8, opset_import: ["": 17]>'
    return io.load(onnx.parser.parse_model(f"{header}\n{graph}"))


_SAME = "g (float[1,2,5] x) => (float[1,2,5] y) { y = Identity(x) }"
_OFF = """g (float[1,2,5] x) => (float[1,2,5] y)
  <float[1,2,1] e = {0.5, 0.001}> { y = Add(x, e) }"""


def _feeds(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    scale = np.float32([100, 0.1]).reshape(1, 2, 1)  # boxes in pixels, and scores
    return [{"x": (rng.normal(size=(1, 2, 5)) * scale).astype(np.float32)} for _ in range(count)]


def test_channels_count_alike_whatever_their_scale() -> None:
    feeds = _feeds(3)

    found = Judge(_model(_SAME), feeds).decibels(_model(_OFF))

    for feed, decibels in zip(feeds, found, strict=True):
        power = np.square(feed["x"][0].astype(np.float64)).sum(axis=1)
        noise = 5 * np.square([0.5, 0.001])
        assert decibels == pytest.approx(np.mean(10 * np.log10(power / noise)), abs=0.05)


def test_equal_outputs_have_the_highest_ratio_and_broken_ones_the_lowest() -> None:
    broken = "g (float[1,2,5] x) => (float[1,2,5] y) <float z = {0.0}> { y = Div(x, z) }"
    judge = Judge(_model(_SAME), _feeds(2))

    assert judge.decibels(_model(_SAME)).tolist() == [120.0, 120.0]
    assert judge.decibels(_model(broken)).tolist() == [-20.0, -20.0]


def test_outputs_that_are_no_floats_say_nothing() -> None:
    at = "g (float[1,2,5] x) => (int64[1,5] y) { y = ArgMax<axis=1, keepdims=0>(x) }"

    assert len(Judge(_model(at), _feeds(2)).decibels(_model(at))) == 0


def test_a_channel_of_zeros_is_passed_over() -> None:
    feeds = [{"x": np.float32([[[3, 0, 0, 0, 4], [0] * 5]])}]

    found = Judge(_model(_SAME), feeds).decibels(_model(_OFF))

    assert found.tolist() == pytest.approx([10 * math.log10(25 / (5 * 0.25))], abs=1e-4)
