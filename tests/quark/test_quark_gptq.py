"""GPTQ through Quark's names: every parameter has its effect."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.matrix_models import matrices, rows
from helpers.quark_helpers import ListReader, quiet
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from lowbit.config.methods import MinMax, MinMse
from lowbit.config.refinement import Gptq
from lowbit.config.specs import IntegerSpec
from lowbit.graph import io
from lowbit.numerics.formats import IntegerFormat
from lowbit.quark.errors import CompatibilityWarning, NotSupportedError, QuarkConfigError
from lowbit.quark.onnx import (
    AdaRoundConfig,
    GPTQConfig,
    Int8Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QuantGranularity,
)
from lowbit.quark.onnx.quantization.config import get_default_config
from lowbit.quark.translate.job import Job, make_job
from lowbit.quark.translate.qconfig import with_algorithms

MODEL = matrices()


def _job(algorithm: GPTQConfig, preset: str = "INT8_CNN_DEFAULT") -> Job:
    config = with_algorithms(get_default_config(preset), [algorithm])
    return make_job(config, io.load(MODEL), lenient=False)


def _quantized(*algorithms: Any, **layer: Any) -> onnx.ModelProto:
    config = QConfig(
        global_config=QLayerConfig(input_tensors=Int8Spec(), weight=Int8Spec(**layer)),
        algo_config=list(algorithms),
        extra_options={"PrintSummary": False},
    )
    model = ModelQuantizer(config).quantize_model(MODEL, None, ListReader(rows(12)))
    assert model is not None
    return model


def _constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}


@pytest.mark.parametrize(
    ("changed", "spec", "refine"),
    [
        ({}, {}, {}),
        ({"bits": 4}, {"format": IntegerFormat.INT4}, {}),
        ({"group_size": 16}, {"group_size": 16}, {}),
        ({"per_channel": True}, {"per_channel": True}, {}),
        ({"mse": True}, {"method": MinMse()}, {}),
        ({"weight_symmetric": False}, {"symmetric": False}, {}),
        ({"block_size": 32}, {}, {"block_size": 32}),
        ({"perc_damp": 0.1}, {}, {"perc_damp": 0.1}),
        ({"act_order": True}, {}, {"act_order": True}),
    ],
)
def test_every_parameter_goes_where_it_is_read(changed: dict, spec: dict, refine: dict) -> None:
    job = _job(GPTQConfig(**changed))

    usual = {"format": IntegerFormat.INT8, "symmetric": True, "method": MinMax()}
    assert job.config.weight == IntegerSpec(**{**usual, **spec})
    assert job.config.refinement == Gptq(**refine)
    assert job.config.activation is None


def test_all_parameters_are_tested() -> None:
    tested = "bits group_size per_channel mse weight_symmetric block_size perc_damp act_order"
    assert {f.name for f in dataclasses.fields(GPTQConfig)} == set(tested.split())


@pytest.mark.parametrize(
    "changed",
    [
        {"bits": 4},
        {"group_size": 16},
        {"per_channel": True},
        {"mse": True, "bits": 4},
        {"weight_symmetric": False},
        {"perc_damp": 10.0},
        {"act_order": True},
    ],
)
def test_every_parameter_changes_the_model(changed: dict) -> None:
    """But the size of blocks, which changes how long it takes."""
    bits = {"bits": changed.get("bits", 8)} if "mse" in changed else {}
    plain, other = _quantized(GPTQConfig(**bits)), _quantized(GPTQConfig(**changed))
    assert plain.graph.SerializeToString() != other.graph.SerializeToString()
    onnx.checker.check_model(other, full_check=True)


def test_the_model_has_float_activations_and_is_nearer_than_by_rounding() -> None:
    model = _quantized(GPTQConfig(bits=4, per_channel=True))

    assert {n.op_type for n in model.graph.node} == {"DequantizeLinear", "MatMul", "Gemm", "Relu"}
    unseen = rows(6, seed=8)
    wanted = [ReferenceEvaluator(MODEL).run(None, feed)[0] for feed in unseen]

    def distance(weights: dict[str, np.ndarray]) -> float:
        """Run the float model with other weights."""
        changed = onnx.ModelProto()
        changed.CopyFrom(MODEL)
        for constant in changed.graph.initializer:
            if constant.name in weights:
                constant.CopyFrom(numpy_helper.from_array(weights[constant.name], constant.name))
        run = ReferenceEvaluator(changed)
        return float(
            np.mean(
                [
                    np.square(run.run(None, f)[0] - w).mean()
                    for f, w in zip(unseen, wanted, strict=True)
                ]
            )
        )

    floats, stored = _constants(MODEL), _constants(model)
    mine, nearest = {}, {}
    for name, axis in (("w0", 0), ("w1", 0), ("w2", 1)):
        scale = np.expand_dims(stored[f"{name}_scale"], axis)
        np.testing.assert_allclose(
            scale, np.abs(floats[name]).max(axis=axis, keepdims=True) / 7, rtol=1e-6
        )
        mine[name] = stored[f"{name}_quantized"].astype(np.float32) * scale
        nearest[name] = np.clip(np.rint(floats[name] / scale), -7, 7).astype(np.float32) * scale
    assert distance(mine) < 0.6 * distance(nearest)


def test_the_older_names_mean_the_same() -> None:
    params = {"Bits": 4, "PerChannel": True, "ActOrder": True}
    config = quiet("INT8_CNN_DEFAULT", extra_options={"UseGPTQ": True, "GPTQParams": params})
    old = ModelQuantizer(config).quantize_model(MODEL, None, ListReader(rows(12)))
    new = _quantized(GPTQConfig(bits=4, per_channel=True, act_order=True))
    assert old is not None
    mine, theirs = _constants(old), _constants(new)
    assert mine.keys() == theirs.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], theirs[name])


def test_weights_in_groups_without_gptq() -> None:
    """Quark has the word and no size for it: that of its MatMulNBits."""
    config = QConfig(
        global_config=QLayerConfig(
            input_tensors=Int8Spec(), weight=Int8Spec(quant_granularity=QuantGranularity.Group)
        ),
        extra_options={"PrintSummary": False},
    )
    wide = matrices(300)
    model = ModelQuantizer(config).quantize_model(wide, None, ListReader(rows(4, width=300)))
    assert model is not None
    assert _constants(model)["w0_scale"].shape == (3, 64)
    assert _constants(model)["w1_scale"].shape == (48,)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(NotSupportedError, match="Bits is 3"):
        _job(GPTQConfig(bits=3))
    with pytest.raises(QuarkConfigError, match="GroupSize is 0"):
        _job(GPTQConfig(group_size=0))
    with pytest.raises(QuarkConfigError, match="perc_damp is 0"):
        _job(GPTQConfig(perc_damp=0))
    with pytest.raises(QuarkConfigError, match="enable_npu_cnn"):
        _job(GPTQConfig(), "XINT8")
    with pytest.raises(QuarkConfigError, match="bfloat16"):
        _job(GPTQConfig(), "BF16")
    both = with_algorithms(get_default_config("INT8_CNN_DEFAULT"), [GPTQConfig(), AdaRoundConfig()])
    with pytest.raises(QuarkConfigError, match="take one of them"):
        make_job(both, io.load(MODEL), lenient=False)
    alone = get_default_config("INT8_CNN_DEFAULT")
    alone.extra_options["GPTQParams"] = {"Bit": 4}
    with pytest.warns(CompatibilityWarning, match="without UseGPTQ"):
        make_job(alone, io.load(MODEL), lenient=False)
    alone.extra_options["UseGPTQ"] = True
    with pytest.raises(QuarkConfigError, match=r"GPTQParams has no 'Bit'; did you mean 'Bits'\?"):
        make_job(alone, io.load(MODEL), lenient=False)


def _nbits(reader: Any = None, **parameters: Any) -> onnx.ModelProto:
    options = {"UseMatMulNBits": True, "MatMulNBitsParams": parameters}
    config = quiet("MATMUL_NBITS", extra_options=options)
    model = ModelQuantizer(config).quantize_model(
        MODEL, None, ListReader(rows(12)) if reader is None else reader
    )
    assert model is not None
    return model


def _from_float(model: onnx.ModelProto) -> float:
    run = ort.InferenceSession(model.SerializeToString())
    floats = ReferenceEvaluator(MODEL)
    return float(
        np.mean(
            [
                np.square(run.run(None, f)[0] - floats.run(None, f)[0]).mean()
                for f in rows(6, seed=8)
            ]
        )
    )


def _skip_before_eight_bits(bits: int) -> None:
    if bits == 8 and tuple(map(int, ort.__version__.split(".")[:2])) < (1, 23):
        pytest.skip(f"onnxruntime {ort.__version__} runs MatMulNBits of 4 bits alone")


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [16, 32])
def test_gptq_in_blocks_of_matmul(bits: int, size: int, symmetric: bool) -> None:
    _skip_before_eight_bits(bits)
    shared = {"Bits": bits, "GroupSize": size, "Symmetric": symmetric}
    model = _nbits(Algorithm="GPTQ", **shared)

    onnx.checker.check_model(model)
    assert [n.op_type for n in model.graph.node].count("MatMulNBits") == 2
    assert "DequantizeLinear" not in {n.op_type for n in model.graph.node}
    assert _from_float(model) < 0.9 * _from_float(_nbits(Algorithm="DEFAULT", **shared))


@pytest.mark.parametrize("bits", [4, 8])
def test_hqq_in_blocks_of_matmul(bits: int) -> None:
    _skip_before_eight_bits(bits)
    shared = {"Bits": bits, "GroupSize": 16}
    model = _nbits(Algorithm="HQQ", **shared)

    onnx.checker.check_model(model)
    assert [n.op_type for n in model.graph.node].count("MatMulNBits") == 2
    assert "DequantizeLinear" not in {n.op_type for n in model.graph.node}
    assert _from_float(model) < 1.1 * _from_float(_nbits(Algorithm="DEFAULT", **shared))


def test_blocks_by_gptq_are_told_what_is_wrong() -> None:
    with pytest.raises(
        NotSupportedError, match="'AWQ' is not supported; DEFAULT, GPTQ and HQQ are"
    ):
        _nbits(Algorithm="AWQ")
    with pytest.raises(QuarkConfigError, match="Bits is 3"):
        _nbits(Algorithm="GPTQ", Bits=3)
    with pytest.raises(QuarkConfigError, match="GroupSize is 24"):
        _nbits(Algorithm="GPTQ", GroupSize=24)
    config = quiet(
        "MATMUL_NBITS",
        extra_options={"UseMatMulNBits": True, "MatMulNBitsParams": {"Algorithm": "GPTQ"}},
    )
    with pytest.raises(ValueError, match="GPTQ rounds by data"):
        ModelQuantizer(config).quantize_model(MODEL, None, None)
