import msgspec
import numpy as np
import onnx
import pytest
from helpers.cache_models import cached_feeds, cached_model, run_calls

import lowbit
from lowbit.config.presets import INT8_CACHE, find_preset
from lowbit.errors import ModelError
from lowbit.graph import io


def test_a_cache_of_integers_gives_the_same_as_one_of_floats_that_are_rounded() -> None:
    config = msgspec.structs.replace(find_preset("W8"), cache=INT8_CACHE)
    quantized = lowbit.quantize(cached_model(), data=cached_feeds(), config=config).model
    x, cuts = cached_feeds(1)[0]["x"], (0, 2, 3, 5)

    converted = io.to_proto(lowbit.convert(quantized, to="integer-io"))

    want, floats = run_calls(quantized, x, cuts, np.float32)
    got, codes = run_calls(converted, x, cuts, np.int8)
    np.testing.assert_array_equal(got, want)
    told = {p.key: p.value for p in converted.metadata_props}["lowbit.scale.present_key_0"]
    scale, zero = map(float, told.split(", "))
    assert (codes.dtype, zero) == (np.int8, 0)
    np.testing.assert_allclose(codes * np.float32(scale), floats, rtol=1e-6)
    onnx.checker.check_model(converted, full_check=True)


def test_quantized_images_become_integers_too() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]> g (float[1,8] x) => (float[1,8] y)
    <float s = {0.5}, int8 z = {3}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        r = Relu(d)
        p = QuantizeLinear(r, s, z)
        y = DequantizeLinear(p, s, z)
    }"""

    model = io.to_proto(lowbit.convert(onnx.parser.parse_model(text), to="integer-io"))

    assert [n.op_type for n in model.graph.node] == ["DequantizeLinear", "Relu", "QuantizeLinear"]
    kinds = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
    assert kinds == {onnx.TensorProto.INT8}
    assert {p.key: p.value for p in model.metadata_props}["lowbit.scale.x"] == "0.5, 3"


def test_a_float_model_has_no_integers_to_give() -> None:
    with pytest.raises(ModelError, match="--cache int8"):
        lowbit.convert(cached_model(), to="integer-io")
