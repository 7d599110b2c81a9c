"""Several quantized models beside one float model: the same accuracy as one at a time."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from helpers.small_models import small_cnn, small_feeds
from helpers.staged import quantized

from lowbit.config.presets import find_preset
from lowbit.evaluate import labelled
from lowbit.evaluate.accuracy import TopScorer
from lowbit.evaluate.labelled import LabelledSamples
from lowbit.graph import io

_FEEDS = small_feeds(12, 8)


def _best(model) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return np.array([session.run(None, feed)[0].argmax() for feed in _FEEDS])


def test_the_float_model_is_run_once_for_all(monkeypatch) -> None:
    model = io.load(small_cnn(8))
    labels = [int(k) for k in _best(small_cnn(8))]
    labels[:3] = [(k + 1) % 5 for k in labels[:3]]
    names = []
    real = labelled.run_model
    monkeypatch.setattr(
        labelled, "run_model", lambda run, feeds: names.append(run.name) or real(run, feeds)
    )

    samples = LabelledSamples.of(model, _FEEDS, labels, TopScorer())
    for preset in ("A8W8", "A16W8"):
        state = quantized(small_cnn(8), find_preset(preset), _FEEDS[:4])
        (top,) = samples.accuracy(state.emitted.model)
        hits = _best(io.to_proto(state.emitted.model)) == labels
        assert top.quantized_score == pytest.approx(100 * hits.mean())
        assert top.float_score == pytest.approx(75.0)
        assert top.samples == 12

    assert names == ["the float model", "the quantized model", "the quantized model"]
