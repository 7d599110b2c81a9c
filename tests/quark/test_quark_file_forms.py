"""Forms of files that options ask for, and models that stay off the disk."""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quark_cases import DATA, samples
from helpers.quark_helpers import ListReader, quiet, run_python
from onnx import numpy_helper

from lowbit.quark.onnx import ModelQuantizer, QuantFormat


def _quantized(preset: str, options: dict | None = None, **fields: Any) -> onnx.ModelProto:
    config = quiet(preset, options, include_cle=False, **fields)
    feeds = [dict(feed) for feed in samples("calib.npz")]
    return ModelQuantizer(config).quantize_model(
        onnx.load(DATA / "float.onnx"), None, ListReader(feeds)
    )


def _counted(model: onnx.ModelProto) -> Counter:
    onnx.checker.check_model(model)
    return Counter(node.op_type for node in model.graph.node)


def _outputs(model: onnx.ModelProto) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.concatenate([session.run(None, dict(feed))[0] for feed in samples("calib.npz")])


def test_vaiml_is_float32_with_weights_that_bfloat16_holds() -> None:
    model = _quantized("BF16", {"EnableVaimlBF16": True})

    # Quark 0.13 leaves the two Casts at the input, and no other operator of its own.
    counted = _counted(model)
    assert counted["Cast"] == 2
    assert not any(name.startswith("Extended") for name in counted)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.ndim:
            np.testing.assert_array_equal(
                array, array.astype(ml_dtypes.bfloat16).astype(np.float32)
            )


def test_clips_stand_before_activations_that_become_bfloat16() -> None:
    plain, clipped = _quantized("BF16"), _quantized("BF16", {"BF16WithClip": True})

    # 13 in Quark 0.13, of which one is the network's own.
    assert (_counted(plain)["Clip"], _counted(clipped)["Clip"]) == (1, 13)
    np.testing.assert_array_equal(_outputs(plain), _outputs(clipped))


def test_integer_operators_compute_what_the_pairs_do() -> None:
    pairs = _quantized("INT8_CNN_DEFAULT")
    integers = _quantized("INT8_CNN_DEFAULT", quant_format=QuantFormat.QOperator)

    counted = _counted(integers)
    # As many as Quark 0.13 has.
    expected = {"QLinearConv": 6, "QLinearAdd": 1, "QLinearConcat": 1, "QGemm": 1}
    assert {name: counted[name] for name in expected} == expected
    off = np.abs(_outputs(pairs) - _outputs(integers)).max()
    assert off <= np.abs(_outputs(pairs)).max() / 100  # requantization in integers may round apart


_WATCHED = """
import json, os, sys
opened = []
def watch(event, args):
    if event == "open" and (isinstance(args[1], str) and set(args[1]) & set("wax+")):
        opened.append(str(args[0]))
    if event in ("os.mkdir", "os.rename"):
        opened.append(str(args[0]))
import numpy as np, onnx
from lowbit.quark.onnx import ModelQuantizer, QuantizationConfig, Config, RandomDataReader
from lowbit.quark.onnx.quantization.config import get_default_config
config = get_default_config("A8W8")
config.print_summary, config.crypto_mode = False, True
model = onnx.load(sys.argv[1])
reader = RandomDataReader(model)
sys.addaudithook(watch)
made = ModelQuantizer(Config(config)).quantize_model(model, sys.argv[2], reader)
print(json.dumps([made is not None, sorted({path for path in opened})]))
"""


def test_crypto_mode_writes_nothing_to_a_disk(tmp_path: pathlib.Path) -> None:
    if not pathlib.Path("/dev/shm").is_mount():  # noqa: S108
        pytest.skip("this system has no file system in memory at /dev/shm")
    (tmp_path / "script.py").write_text(_WATCHED)

    done = run_python("script.py", str(DATA / "float.onnx"), "out.onnx", cwd=tmp_path)

    assert "is returned, not written to out.onnx" in done.stderr
    returned, written = json.loads(done.stdout)
    assert returned
    assert written
    assert [path for path in written if not path.startswith("/dev/shm/")] == []  # noqa: S108
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


def test_crypto_mode_takes_no_files(tmp_path: pathlib.Path) -> None:
    config = quiet("A8W8", crypto_mode=True)

    with pytest.raises(ValueError, match=r"takes the model as an onnx\.ModelProto"):
        ModelQuantizer(config).quantize_model(str(DATA / "float.onnx"), None, ListReader([]))
    config.global_quant_config.use_external_data_format = True
    with pytest.raises(ValueError, match="no external data"):
        ModelQuantizer(config).quantize_model(onnx.load(DATA / "float.onnx"), None, ListReader([]))
    assert list(tmp_path.iterdir()) == []
