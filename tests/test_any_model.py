"""Any model that onnxruntime runs is quantized, and its outputs stay what they are."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
from helpers.odd_models import ODD, SEVERAL_INPUTS, odd_model

import lowbit
from lowbit.config.presets import find_preset
from lowbit.config.refinement import AdaQuant, AdaRound, Gptq
from lowbit.evaluate.same_outputs import arrays_of, difference

_QUICK = {"num_iterations": 10, "data_size": 4}
REFINEMENTS = {"GPTQ": Gptq(), "AdaRound": AdaRound(**_QUICK), "AdaQuant": AdaQuant(**_QUICK)}


def every_output(model, feeds) -> Iterator[dict[str, np.ndarray]]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    for feed in feeds:
        pairs = zip(names, session.run(None, feed), strict=True)
        yield {part: array for name, value in pairs for part, array in arrays_of(name, value)}


def outputs(model, feed) -> dict[str, np.ndarray]:
    return next(every_output(model, [feed]))


def check(model, feeds, result) -> None:
    pairs = zip(every_output(model, feeds), every_output(result.model, feeds), strict=True)
    for want, got in pairs:
        assert list(want) == list(got)
        for name, array in want.items():
            assert array.dtype == got[name].dtype
            assert difference(array, got[name]) == ""
    assert result.report.sqnr_db > 15


def configured(word: str):
    if word not in REFINEMENTS:
        return find_preset(word)
    return msgspec.structs.replace(find_preset("A8W8"), refinement=REFINEMENTS[word])


@pytest.mark.parametrize("config", ["A8W8", "XINT8", "A16W8", *REFINEMENTS])
@pytest.mark.parametrize("name", SEVERAL_INPUTS)
def test_models_of_several_inputs_are_refined(name: str, config: str) -> None:
    model, feeds = odd_model(name)

    result = lowbit.quantize(model, data=feeds, config=configured(config))

    check(model, feeds, result)


@pytest.mark.parametrize("preset", ["A8W8", "XINT8", "A16W8", "BF16"])
@pytest.mark.parametrize("name", ODD)
def test_odd_models_are_quantized(name: str, preset: str) -> None:
    model, feeds = odd_model(name)

    result = lowbit.quantize(model, data=feeds, preset=preset, allow_ruined=True)

    check(model, feeds, result)


@pytest.mark.parametrize("preset", ["U8S8_PERCHANNEL", "DYNAMIC8", "W4"])
@pytest.mark.parametrize("name", ["functions of one name", "a weight of no columns"])
def test_odd_models_are_quantized_by_channel_and_group(name: str, preset: str) -> None:
    model, feeds = odd_model(name)

    result = lowbit.quantize(model, data=feeds, preset=preset, allow_ruined=True)

    assert [row for row in result.plan.tensors if row.role == "weight"]
    got = outputs(result.model, feeds[0])
    for output, array in outputs(model, feeds[0]).items():
        assert difference(array, got[output]) == ""
