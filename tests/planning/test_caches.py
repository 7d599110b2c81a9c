import msgspec
import numpy as np
import onnx
import pytest
from helpers.cache_models import cached_feeds, cached_model, run_calls

import lowbit
from lowbit.config.presets import INT8_CACHE, find_preset
from lowbit.errors import DataError, PlanError


def _config(preset: str = "W8") -> lowbit.QuantConfig:
    return msgspec.structs.replace(find_preset(preset), cache=INT8_CACHE)


@pytest.mark.parametrize("preset", ["W8", "A8W8", "U8S8_PERCHANNEL", "DYNAMIC8"])
def test_a_cache_has_the_parameters_of_the_output_it_comes_from(preset: str) -> None:
    plan = lowbit.plan(cached_model(), config=_config(preset)).by_name()

    assert plan["past_key_0"].leader == plan["present_key_0"].leader == "present_key_0"
    assert plan["past_key_0"].spec == plan["present_key_0"].spec == INT8_CACHE


def test_what_is_on_the_grid_is_rounded_no_more() -> None:
    model = lowbit.quantize(cached_model(), data=cached_feeds(), config=_config()).model
    x = cached_feeds(1)[0]["x"]

    _, once = run_calls(model, x, (0, 5), np.float32)
    _, often = run_calls(model, x, (0, 1, 2, 3, 4, 5), np.float32)

    np.testing.assert_array_equal(once, often)


def test_an_int8_cache_is_as_near_as_8_bits_are() -> None:
    feeds = cached_feeds()
    model = lowbit.quantize(cached_model(), data=feeds, config=_config()).model

    _, want = run_calls(cached_model(), feeds[0]["x"], (0, 5), np.float32)
    _, got = run_calls(model, feeds[0]["x"], (0, 5), np.float32)

    assert 0 < ((got - want) ** 2).mean() < 1e-3 * (want**2).mean()


def test_scales_of_caches_need_data() -> None:
    with pytest.raises(DataError, match="scales of caches are calibrated"):
        lowbit.quantize(cached_model(), config=_config())


def test_a_model_without_a_cache_has_none_to_quantize() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y)
    <float[64,64] w> { y = MatMul(x, w) }"""
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    data = np.ones((64, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(data, "w"))

    with pytest.raises(PlanError, match="the model has none"):
        lowbit.plan(model, config=_config())
