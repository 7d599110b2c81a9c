"""Microsoft Olive runs its Quark pass on lowbit, by the name ``quark``.

The environment variable OLIVE_PYTHON names a Python that has olive-ai and what lowbit needs;
``make clients`` builds one.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from collections import Counter

import numpy as np
import onnx
import pytest
from helpers.quark_helpers import ListReader
from helpers.small_models import small_cnn
from onnx import TensorProto, numpy_helper

import lowbit
from lowbit.quark.onnx import CLEConfig, ModelQuantizer, QConfig, QLayerConfig
from lowbit.quark.onnx.quantization.config import spec

OLIVE = os.environ.get("OLIVE_PYTHON")
pytestmark = [
    pytest.mark.skipif(not OLIVE, reason="OLIVE_PYTHON names no Python with olive-ai"),
    pytest.mark.slow,
]
HERE = pathlib.Path(__file__).parent

_INPUTS = {"symmetric": False, "calibration_method": "MinMax", "data_type": "UInt8"}
_WEIGHT = {"symmetric": True, "calibration_method": "MinMax", "data_type": "Int8"}
_LAYER = {"activation": _INPUTS, "weight": _WEIGHT}
_WIDE = {"data_type": "UInt16", "symmetric": False}
_BYTES = {"data_type": "UInt8", "symmetric": False}
_XINT8 = {**_WEIGHT, "scale_type": "PowerOf2", "calibration_method": "MinMSE"}
CASES = {
    "plain": {"global_config": _LAYER},
    "newer name": {"global_config": {"input_tensors": _INPUTS, "weight": _WEIGHT}},
    "random data": {"global_config": _LAYER, "random": True},
    "equalized": {"global_config": _LAYER, "algo_config": [{"name": "cle", "cle_steps": 2}]},
    "subgraph": {"global_config": _LAYER, "exclude": [[["conv2"], ["fc"]]]},
    "wide tensor": {
        "global_config": _LAYER,
        "extra_options": {"TensorQuantOverrides": {"r1": [{"quant_type": "UInt16"}]}},
    },
    "wide operator": {
        "global_config": _LAYER,
        "layer_type_config": [[{"activation": _WIDE, "weight": _BYTES}, ["Gemm"]]],
    },
    "wide layer": {
        "global_config": _LAYER,
        "specific_layer_config": [
            [{"input_tensors": _WIDE, "output_tensors": _WEIGHT, "weight": _BYTES}, ["fc"]]
        ],
    },
    "NPU": {"global_config": {"activation": _XINT8, "weight": _XINT8}},
    "bfloat16": {
        "global_config": {key: {"data_type": "BFloat16"} for key in ("activation", "weight")}
    },
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, onnx.ModelProto]:
    folder = tmp_path_factory.mktemp("olive")
    onnx.save(_model(), folder / "model.onnx")
    (folder / "cases.json").write_text(json.dumps(CASES))
    drop_in = pathlib.Path(lowbit.__file__).parents[2] / "drop-in/src"
    done = subprocess.run(
        [str(OLIVE), str(HERE / "olive_passes.py"), "model.onnx", "cases.json", "out"],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": f"{drop_in.parents[1] / 'src'}{os.pathsep}{drop_in}",
            "OLIVE_DISABLE_TELEMETRY": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: onnx.load(folder / "out" / name / "model.onnx") for name in CASES}


def _model() -> onnx.ModelProto:
    return small_cnn(16)


def _feeds() -> list[dict[str, np.ndarray]]:
    shape = (1, 3, 16, 16)
    noise = [np.random.default_rng(i).normal(size=shape[1:]) for i in range(6)]
    return [{"input": x.astype(np.float32).reshape(shape)} for x in noise]


def _stored(model: onnx.ModelProto) -> dict[str, list]:
    return {t.name: numpy_helper.to_array(t).tolist() for t in model.graph.initializer}


def _direct(config: QConfig) -> dict[str, list]:
    config.extra_options["PrintSummary"] = False
    model = ModelQuantizer(config).quantize_model(_model(), None, ListReader(_feeds()))
    assert model is not None
    return _stored(model)


def _layer() -> QLayerConfig:
    minmax = {"calibration_method": spec.CalibMethod.MinMax}
    return QLayerConfig(input_tensors=spec.UInt8Spec(**minmax), weight=spec.Int8Spec(**minmax))


def _types(model: onnx.ModelProto) -> Counter:
    points = [t for t in model.graph.initializer if t.name.endswith("_zero_point")]
    return Counter(TensorProto.DataType.Name(t.data_type) for t in points)


@pytest.mark.parametrize("name", CASES)
def test_every_configuration_gives_a_valid_model(
    made: dict[str, onnx.ModelProto], name: str
) -> None:
    onnx.checker.check_model(made[name], full_check=True)
    operators = Counter(node.op_type for node in made[name].graph.node)
    assert operators["DequantizeLinear"] + operators["ExtendedDequantizeLinear"] > 3


def test_the_pass_gives_what_a_script_gives(made: dict[str, onnx.ModelProto]) -> None:
    assert _stored(made["plain"]) == _direct(QConfig(_layer()))
    assert _stored(made["newer name"]) == _stored(made["plain"])
    equalized = QConfig(_layer(), algo_config=[CLEConfig(cle_steps=2)])
    assert _stored(made["equalized"]) == _direct(equalized)
    npu = QLayerConfig(input_tensors=spec.XInt8Spec(), weight=spec.XInt8Spec())
    assert _stored(made["NPU"]) == _direct(QConfig(npu))


def test_exceptions_reach_their_layers(made: dict[str, onnx.ModelProto]) -> None:
    assert _types(made["plain"])["UINT16"] == 0
    for name in ("wide tensor", "wide operator", "wide layer"):
        assert _types(made[name])["UINT16"] >= 1, name
    quantized = {t.name for t in made["subgraph"].graph.initializer if "_quantized" in t.name}
    assert any(name.startswith("n1_weight") or "w1" in name for name in quantized)
    assert not quantized & {"w2_quantized", "w3_quantized"}
