"""Scripts of Quark's predecessor run unchanged, in the patterns that public repositories have."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from helpers.quark_helpers import BareReader, quiet, run_python
from helpers.small_models import small_cnn, small_feeds

from lowbit.quark import vai_q_onnx
from lowbit.quark.onnx import ModelQuantizer

DROP_IN = pathlib.Path(__file__).parents[2] / "drop-in/src"
_SCRIPT = """
import os
import numpy as np
import vai_q_onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType
from vai_q_onnx import PowerOfTwoMethod, VitisQuantFormat, VitisQuantType, get_library_path
from vai_q_onnx.calibrate import RandomDataReader
from vai_q_onnx.quantize import quantize_static
from vai_q_onnx.tools.remove_qdq import remove_qdq

class Reader(CalibrationDataReader):
    def __init__(self):
        self.data = iter(np.random.default_rng(1).normal(size=(3, 1, 3, 32, 32)))
    def get_next(self):
        found = next(self.data, None)
        return None if found is None else {"input": found.astype(np.float32)}

vai_q_onnx.quantize_static(
    "model.onnx", "npu.onnx", Reader(),
    quant_format=vai_q_onnx.QuantFormat.QDQ,
    calibrate_method=vai_q_onnx.PowerOfTwoMethod.MinMSE,
    activation_type=vai_q_onnx.QuantType.QUInt8,
    weight_type=vai_q_onnx.QuantType.QInt8,
    enable_ipu_cnn=True, include_cle=True,
    extra_options={"ActivationSymmetric": True, "CLESteps": 1},
    print_summary=False,
)
quantize_static(
    "model.onnx", "wide.onnx", calibration_data_reader=None,
    quant_format=VitisQuantFormat.QDQ, calibrate_method=vai_q_onnx.CalibrationMethod.MinMax,
    activation_type=VitisQuantType.QInt16, weight_type=VitisQuantType.QInt8,
    random_data_reader_input_shape={"input": [1, 3, 32, 32]}, print_summary=False,
)
print(sorted(name for name in os.listdir(".") if name.endswith(".onnx")))
"""


@pytest.mark.parametrize("hosted", [True, False])
def test_a_script_runs_unchanged(tmp_path: pathlib.Path, hosted: bool) -> None:
    onnx.save(small_cnn(), tmp_path / "model.onnx")
    (tmp_path / "script.py").write_text(_SCRIPT)
    before = ("-m", "lowbit.quark") if hosted else ()

    done = run_python(*before, "script.py", cwd=tmp_path, more_path="" if hosted else str(DROP_IN))

    assert done.stderr == ""
    assert done.stdout.strip() == "['model.onnx', 'npu.onnx', 'wide.onnx']"
    for name in ("npu", "wide"):
        onnx.checker.check_model(onnx.load(tmp_path / f"{name}.onnx"))


def test_the_npus_flow_is_quarks_by_each_of_its_older_names() -> None:
    expected = ModelQuantizer(quiet("XINT8", include_cle=False)).quantize_model(
        small_cnn(), None, BareReader(small_feeds(4))
    )

    for flag in ("enable_dpu", "use_dpu", "enable_ipu_cnn", "enable_npu_cnn"):
        model = vai_q_onnx.quantize_static(
            small_cnn(),
            None,
            BareReader(small_feeds(4)),
            activation_type=vai_q_onnx.QuantType.QUInt8,
            extra_options={"ForceQuantizeNoInputCheck": True},
            print_summary=False,
            **{flag: True},
        )
        assert model.graph.initializer == expected.graph.initializer, flag


def test_the_transformers_flow_quantizes_matrices_alone() -> None:
    model = vai_q_onnx.quantize_static(
        small_cnn(),
        None,
        calibrate_method=vai_q_onnx.CalibrationMethod.MinMax,
        enable_ipu_transformer=True,
        print_summary=False,
    )

    stored = {t.name for t in model.graph.initializer if np.prod(t.dims) > 8}
    assert "w3_quantized" in stored
    assert "w2" in stored
