"""Scales by sensitivity: found where they help, measured here by an onnxruntime of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from helpers.wide_models import wide_feeds, wide_network

import lowbit
from lowbit.calibrate.statistics import load_stats, save_stats
from lowbit.config.presets import find_preset
from lowbit.config.scale_search import SensitivityWeighting
from lowbit.errors import ConfigError, ModelError
from lowbit.ops.gradients import OutputPart
from lowbit.pipeline.output_parts import measured_outputs
from lowbit.search import keep_if_better, sensitive_scales

NAME = "scales by sensitivity"


def _config(preset: str, **changes: object) -> lowbit.QuantConfig:
    """Return nothing but scales of least error, weighted or not."""
    given = {
        "equalization": None,
        "smooth_quant": None,
        "bias_correction": False,
        "refinement": None,
        "sensitivity": SensitivityWeighting(),
    }
    return msgspec.structs.replace(find_preset(preset), **{**given, **changes})


def _quantized(config: lowbit.QuantConfig, **more: object) -> lowbit.Result:
    data = more.pop("data", wide_feeds(24))
    return lowbit.quantize(
        wide_network(), data=data, config=config, promote=False, allow_ruined=True, **more
    )


def _decibels(quantized: lowbit.Result, feeds: list) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    models = (wide_network(), quantized.model)
    one, other = (ort.InferenceSession(m.SerializeToString(), options) for m in models)
    pairs = [(one.run(None, feed)[0], other.run(None, feed)[0]) for feed in feeds]
    return np.array([10 * np.log10(np.square(a).sum() / np.square(a - b).sum()) for a, b in pairs])


@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "U8S8_PERCHANNEL"])
def test_large_numbers_that_outputs_do_not_feel_are_clipped(preset: str) -> None:
    plain = _quantized(_config(preset, sensitivity=None))
    found = _quantized(_config(preset))

    (step,) = (s for s in found.report.steps if s.name == NAME)
    assert step.kept
    before, after = (float(r.params.tensors["b"].scale) for r in (plain, found))
    assert after < before / 2
    others = wide_feeds(12, seed=1)
    assert (_decibels(found, others) - _decibels(plain, others)).mean() > 3


def test_it_is_done_unasked_where_nothing_is_kept_only_if_better() -> None:
    found = _quantized(_config("A8W8", keep_only_if_better=False))
    plain = _quantized(_config("A8W8", keep_only_if_better=False, sensitivity=None))

    assert found.report.steps == ()
    scales = [float(r.params.tensors["b"].scale) for r in (plain, found)]
    assert scales[1] < scales[0] / 2


def test_saved_statistics_give_the_same_scales(tmp_path) -> None:
    found = _quantized(_config("A8W8"))
    save_stats(found.stats, tmp_path / "stats.npz")

    again = _quantized(_config("A8W8"), stats=load_stats(tmp_path / "stats.npz"))

    for name, params in found.params.tensors.items():
        np.testing.assert_array_equal(again.params.tensors[name].scale, params.scale)


def test_the_same_samples_give_the_same_model() -> None:
    one, other = (_quantized(_config("A8W8")) for _ in range(2))

    assert one.model.SerializeToString() == other.model.SerializeToString()


def test_random_data_have_no_sensitivity() -> None:
    found = _quantized(_config("A8W8"), data="random", limit=8)

    assert not [step for step in found.report.steps if step.name == NAME]


def test_what_is_worse_on_held_out_samples_is_dropped(monkeypatch) -> None:
    plain = _quantized(_config("A8W8", sensitivity=None))
    # Scales that clip nearly all there is.
    narrow = tuple(
        lowbit.TensorOverride(tensor=row.name, range=(-1e-3, 1e-3))
        for row in plain.plan.activations()
    )
    worse = _quantized(_config("A8W8", sensitivity=None, tensors=narrow))
    monkeypatch.setattr(keep_if_better, "weighted_scales", lambda *_: worse.state)

    found = _quantized(_config("A8W8"))

    (step,) = (s for s in found.report.steps if s.name == NAME)
    assert not step.kept
    # Not quite the same: nothing is held out where there is nothing to choose.
    scales = [r.params.tensors["b"].scale for r in (found, plain)]
    np.testing.assert_allclose(*scales, rtol=0.1)


def test_a_graph_with_gradients_that_does_not_run_is_no_fault_of_the_model(monkeypatch) -> None:
    def refused(*_: object) -> None:
        raise ModelError("onnxruntime cannot load the model with gradients")

    monkeypatch.setattr(sensitive_scales, "measure_sensitivity", refused)

    found = _quantized(_config("A8W8"))

    assert not [step for step in found.report.steps if step.name == NAME]


def test_formats_of_16_bits_need_no_sensitivity() -> None:
    found = _quantized(find_preset("A16W8"))

    assert not [step for step in found.report.steps if step.name == NAME]


def test_no_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sensitivity\.samples is 0; it must be at least 1"):
        SensitivityWeighting(samples=0)


@pytest.mark.parametrize(("is_detector", "expected"), [(False, 6), (True, 12)])
def test_a_detector_has_gradients_of_more_samples(
    monkeypatch, is_detector: bool, expected: int
) -> None:
    counted = []

    def counting(_state: object, feeds: Iterable, _outputs: object) -> None:
        counted.append(len(list(feeds)))
        raise ModelError("no gradients are needed here")

    def outputs(*arguments: object) -> list[OutputPart]:
        parts = measured_outputs(*arguments)
        scores = OutputPart(parts[0].tensor)
        return [dataclasses.replace(p, read_at=scores if is_detector else None) for p in parts]

    monkeypatch.setattr(sensitive_scales, "measure_sensitivity", counting)
    monkeypatch.setattr(sensitive_scales, "measured_outputs", outputs)

    _quantized(_config("A8W8", sensitivity=SensitivityWeighting(samples=6)))

    assert counted == [expected]
