"""16-bit floats in the graph: what a plain session computes is what NumPy rounds."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from small_models import small_cnn, small_feeds

import lowbit
from lowbit.config.config import QuantConfig
from lowbit.config.specs import BLOCKS, FloatSpec, Rule
from lowbit.numerics.float16 import FloatFormat, rounded

_BF16, _FP16 = FloatFormat.BFLOAT16, FloatFormat.FLOAT16


def _negation() -> onnx.ModelProto:
    """Return a model of one operator, so that its input's and its output's rounding show."""
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Neg(x) }'
    )


def _config(spec: FloatSpec, **options: object) -> QuantConfig:
    fields = {"activation": spec, "weight": spec, "bias": spec, "target": "ryzen-ai-float"}
    return QuantConfig(**fields, **options)


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("fmt", FloatFormat)
def test_a_tensor_is_rounded_to_the_format(
    fmt: FloatFormat, saturate: bool, scaled: bool, casts: bool
) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=500) * np.exp2(rng.integers(-9, 9, 500))).astype(np.float32)
    config = _config(FloatSpec(format=fmt, saturate=saturate, scaled=scaled), casts=casts)

    result = lowbit.quantize(_negation(), data=[{"x": x}], config=config)

    session = ort.InferenceSession(result.model.SerializeToString())
    (got,) = session.run(None, {"x": x})
    scale = result.params.scales.get("x", 1.0)
    assert (scale != 1.0) == scaled
    expected = -rounded(rounded(x, fmt, scale), fmt, result.params.scales.get("y", 1.0))
    if casts and scaled:
        # Dividing is then multiplying by the inverse, which may be off in the last bit.
        np.testing.assert_allclose(got, expected, rtol=2**-7)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("casts", [False, True])
def test_saturating_float16_has_no_infinities(casts: bool) -> None:
    x = np.array([1e6, -1e6, 65504.0, 1.0], np.float32)
    runs = {}
    for saturate in (False, True):
        config = _config(FloatSpec(format=_FP16, saturate=saturate), casts=casts)
        model = lowbit.quantize(_negation(), data=[{"x": x}], config=config).model
        (runs[saturate],) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})

    np.testing.assert_array_equal(runs[True], [-65504.0, 65504.0, -65504.0, -1.0])
    assert np.isinf(runs[False][:2]).all()


def test_formats_mix_in_one_file() -> None:
    """Two 16-bit formats and two block formats need two bodies for the same names."""
    config = _config(
        FloatSpec(format=_BF16),
        rules=(
            Rule(op_type="Gemm", activation=BLOCKS["MX9"], weight=BLOCKS["MX6"]),
            Rule(op_type="Add", activation=FloatSpec(format=_FP16, saturate=True)),
            Rule(name="conv2", weight=BLOCKS["BFP16"]),
        ),
    )

    result = lowbit.quantize(small_cnn(), data=small_feeds(2), config=config)

    model = result.model
    onnx.checker.check_model(model, full_check=True)
    names = [(f.name, f.overload) for f in model.functions]
    assert len(set(names)) == len(names)
    assert sum(name == "ExtendedQuantizeLinear" for name, _ in names) == 2
    assert sum(name == "BFPQuantizeDequantize" for name, _ in names) >= 2
    ort.InferenceSession(model.SerializeToString())
    assert result.report.sqnr_db > 20


@pytest.mark.parametrize(("casts", "stored"), [*itertools.product([False, True], repeat=2)])
def test_all_ways_to_write_it_compute_the_same(casts: bool, stored: bool) -> None:
    feeds = small_feeds(2)
    plain = lowbit.quantize(small_cnn(), data=feeds, config=_config(FloatSpec(format=_BF16)))

    config = _config(FloatSpec(format=_BF16), casts=casts, half_weights=stored)
    other = lowbit.quantize(small_cnn(), data=feeds, config=config)

    outputs = [
        ort.InferenceSession(r.model.SerializeToString()).run(None, feeds[0])[0]
        for r in (plain, other)
    ]
    np.testing.assert_array_equal(*outputs)
    stored_types = {t.data_type for t in other.model.graph.initializer if len(t.dims) > 1}
    assert stored_types == {onnx.TensorProto.BFLOAT16 if stored else onnx.TensorProto.FLOAT}
    domains = {node.domain for node in other.model.graph.node}
    assert ("com.amd.quark" in domains) == (not casts)
