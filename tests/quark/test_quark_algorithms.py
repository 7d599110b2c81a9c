"""Every parameter of every algorithm has an effect; those that cannot are said to have none.

GPTQ and mixed precision have tests of their own; AdaRound's and AdaQuant's parameters are shown to
act in ``tests/refine/test_finetune.py``, and here that they arrive there.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.quark_helpers import ListReader, quiet
from onnx import TensorProto, helper, numpy_helper

from lowbit.config.refinement import AdaQuant, AdaRound
from lowbit.graph import io
from lowbit.quark.errors import CompatibilityWarning, QuarkConfigError
from lowbit.quark.onnx import (
    AdaQuantConfig,
    AdaRoundConfig,
    BiasCorrectionConfig,
    CLEConfig,
    ModelQuantizer,
    SmoothQuantConfig,
)
from lowbit.quark.onnx.quantization.config import get_default_config
from lowbit.quark.onnx.quantization.config.algorithm import ALGO_NAME_TO_CLASS
from lowbit.quark.translate.job import make_job
from lowbit.quark.translate.qconfig import with_algorithms


def _model() -> onnx.ModelProto:
    """Three convolutions of very unlike channels, some of them tiny, and a MatMul."""
    random = np.random.default_rng(4)
    size = np.geomspace(0.001, 2, 8)
    first = random.normal(size=(8, 3, 3, 3)) * size.reshape(-1, 1, 1, 1)
    second = random.normal(size=(8, 8, 1, 1)) * np.geomspace(0.02, 0.5, 8).reshape(1, -1, 1, 1)
    third = random.normal(size=(8, 8, 1, 1)) * np.geomspace(3, 0.1, 8).reshape(1, -1, 1, 1)
    constants = {
        "w0": first,
        "b0": random.normal(size=8) * size * 3,
        "w1": second,
        "b1": random.normal(size=8),
        "w3": third,
        "b3": random.normal(size=8),
        "w2": random.normal(size=(8, 5)) * np.geomspace(0.1, 3, 8)[:, None],
    }
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["c0"], "conv0"),
        helper.make_node("Relu", ["c0"], ["r0"], "relu0"),
        helper.make_node("Conv", ["r0", "w1", "b1"], ["c1"], "conv1"),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w3", "b3"], ["c3"], "conv3"),
        helper.make_node("GlobalAveragePool", ["c3"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w2"], ["y"], "matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "unlike",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _feeds() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(5)
    return [{"x": random.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]


def _quantized(*algorithms: Any) -> bytes:
    quantizer = ModelQuantizer(quiet("INT8_CNN_DEFAULT", include_cle=False))
    model = quantizer.quantize_model(
        _model(), None, ListReader(_feeds()), algorithms=list(algorithms)
    )
    assert model is not None
    return model.graph.SerializeToString()


@pytest.mark.parametrize(
    ("plain", "changed"),
    [
        ({}, {"cle_steps": 3}),
        ({}, {"cle_weight_threshold": 0.01}),
        ({}, {"cle_scale_append_bias": False}),
        ({}, {"cle_scale_use_threshold": False}),
        ({"cle_steps": -1}, {"cle_total_layer_diff_threshold": 0.1}),
    ],
)
def test_equalization_listens_to_every_parameter(plain: dict, changed: dict) -> None:
    assert _quantized(CLEConfig(**plain)) != _quantized(CLEConfig(**plain, **changed))
    assert _quantized(CLEConfig(**plain)) != _quantized()


def test_the_only_way_to_balance_is_named() -> None:
    with pytest.raises(QuarkConfigError, match="CLEBalanceMethod"):
        _quantized(CLEConfig(cle_balance_method="mean"))


def test_smoothing_and_correction_act() -> None:
    assert _quantized(SmoothQuantConfig()) != _quantized(SmoothQuantConfig(alpha=0.8))
    assert _quantized(SmoothQuantConfig()) != _quantized()
    assert _quantized(BiasCorrectionConfig()) != _quantized()


_CHANGED: dict[str, Any] = {
    "optim_device": "xpu:0",
    "infer_device": "xpu:0",
    "fixed_seed": 7,
    "data_size": 5,
    "batch_size": 3,
    "num_batches": 2,
    "num_iterations": 77,
    "learning_rate": 0.033,
    "early_stop": True,
    "output_index": 1,
    "lr_adjust": (0.5, 0.2),
    "target_op_type": ["Gemm"],
    "selective_update": True,
    "update_bias": True,
    "output_qdq": True,
    "drop_ratio": 0.5,
    "mem_opt_level": 2,
    "cache_dir": "somewhere",
    "log_period": 9,
    "ref_model_path": "other.onnx",
    "dynamic_batch": True,
    "parallel": True,
    "reg_param": 0.5,
    "beta_range": (10.0, 3.0),
    "warm_start": 0.4,
}
_OF_ROUNDING = ("reg_param", "beta_range", "warm_start")
_OF_A_LOADER = {"select_max_mem_layer": True, "num_workers": 3, "pin_memory": True, "use_gds": True}


def _refinement(algorithm: Any) -> Any:
    config = with_algorithms(get_default_config("INT8_CNN_DEFAULT"), [algorithm])
    return make_job(config, io.load(_model()), lenient=False).config.refinement


@pytest.mark.parametrize(("kind", "own"), [(AdaRoundConfig, AdaRound), (AdaQuantConfig, AdaQuant)])
def test_every_parameter_of_finetuning_arrives(kind: type, own: type) -> None:
    named = {f.name for f in dataclasses.fields(kind)}
    assert named == {*_CHANGED, *_OF_A_LOADER}
    usual = _refinement(kind())
    assert type(usual) is own
    for name, value in _CHANGED.items():
        if own is AdaQuant and name in _OF_ROUNDING:
            continue
        wanted = tuple(value) if isinstance(value, list) else value
        assert getattr(usual, name) != wanted
        assert getattr(_refinement(kind(**{name: value})), name) == wanted


@pytest.mark.parametrize("name", _OF_A_LOADER)
def test_what_is_for_a_loader_is_said_to_have_no_effect(name: str) -> None:
    key = AdaRoundConfig.__dataclass_fields__[name].metadata["option"]
    with pytest.warns(CompatibilityWarning, match=f"{key}=.* has no effect"):
        assert _refinement(AdaRoundConfig(**{name: _OF_A_LOADER[name]})) == _refinement(
            AdaRoundConfig()
        )


def test_defaults_are_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in (AdaRoundConfig, AdaQuantConfig, CLEConfig, SmoothQuantConfig):
            _refinement(kind())


def test_all_algorithms_are_looked_at() -> None:
    """A new one needs tests of its own."""
    assert set(ALGO_NAME_TO_CLASS) == {
        "smooth_quant",
        "cle",
        "bias_correction",
        "gptq",
        "quarot",
        "adaround",
        "adaquant",
        "auto_mixprecision",
    }
