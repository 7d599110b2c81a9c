"""Every name that scripts import from Quark, and both ways to import it."""

from __future__ import annotations

import ast
import importlib
import pathlib
import subprocess

import numpy as np
import pytest
from helpers.quark_helpers import BareReader, run_python
from helpers.small_models import small_cnn, small_feeds

import lowbit.quark
from lowbit.quark.alias import OTHER_NAMES

ONNX = """
ModelQuantizer Config QConfig QuantizationConfig QLayerConfig QTensorConfig CalibMethod ScaleType
QuantGranularity DataType Int8 UInt8 Int16 UInt16 Int32 UInt32 Float16 BFloat16 BFP16 AlgoConfig
SmoothQuantConfig CLEConfig BiasCorrectionConfig GPTQConfig AutoMixprecisionConfig AdaRoundConfig
AdaQuantConfig QuarotConfig Int8Spec UInt8Spec XInt8Spec Int16Spec UInt16Spec Int32Spec UInt32Spec
Int4Spec UInt4Spec Float16Spec BFloat16Spec BFP16Spec MX4Spec MX6Spec MX9Spec MXFP4E2M1Spec
MXFP6E2M3Spec MXFP6E3M2Spec MXFP8E4M3Spec MXFP8E5M2Spec MXInt8Spec XINT8_QCONFIG
XINT8_ADAROUND_QCONFIG XINT8_ADAQUANT_QCONFIG VINT8_QCONFIG A8W8_QCONFIG A8W8_ADAROUND_QCONFIG
A8W8_ADAQUANT_QCONFIG A16W8_QCONFIG A16W8_ADAROUND_QCONFIG A16W8_ADAQUANT_QCONFIG BF16_QCONFIG
BFP16_QCONFIG PowerOfTwoMethod Int16Method LayerWiseMethod ExtendedCalibrationMethod
ExtendedQuantType ExtendedQuantFormat VitisQuantType VitisQuantFormat CachedDataReader
RandomDataReader PathDataReader create_calibrator_power_of_two create_calibrator_float_scale
quantize_static quantize_dynamic AutoSearch AutoSearchPro SearchSpace generate_all_configs
get_auto_search_config dump_model get_library_path _COP_DOMAIN _COP_VERSION CalibraterBase
CalibrationDataReader CalibrationMethod MinMaxCalibrater QuantFormat QuantizationMode QuantType
write_calibration_table get_default_config __version__
""".split()

MODULES = {
    "onnx": ONNX,
    "onnx.quantization": "QConfig AdaRoundConfig CLEConfig _algo_flag".split(),
    "onnx.quantization.api": ["ModelQuantizer"],
    "onnx.quantization.config": "Config QConfig QuantizationConfig get_default_config "
    "get_default_config_mapping DefaultConfigMapping".split(),
    "onnx.quantization.config.config": "Config QConfig QuantizationConfig".split(),
    "onnx.quantization.config.custom_config": "get_default_config DefaultConfigMapping "
    "INT8_CNN_ACCURATE_CONFIG XINT8_QCONFIG DEFAULT_ADAROUND_PARAMS DEFAULT_ADAQUANT_PARAMS "
    "DEFAULT_BFP_PARAMS DEFAULT_MICROEXPONENTS_PARAMS DEFAULT_MICROSCALING_PARAMS".split(),
    "onnx.quantization.config.spec": "QLayerConfig QTensorConfig Int4Spec UInt8Spec CalibMethod "
    "ScaleType QuantGranularity".split(),
    "onnx.quantization.config.algorithm": "AdaRoundConfig AdaQuantConfig CLEConfig from_dict "
    "BiasCorrectionConfig SmoothQuantConfig GPTQConfig QuarotConfig AutoMixprecisionConfig".split(),
    "onnx.quantization.quantize": "quantize_static quantize_dynamic".split(),
    "onnx.quantization.quant_utils": "ExtendedQuantType VitisQuantType".split(),
    "onnx.calibration": "PowerOfTwoMethod CachedDataReader".split(),
    "onnx.calibration.methods": ["PowerOfTwoMethod"],
    "onnx.operators.custom_ops": ["get_library_path"],
    "onnx.algorithm": ["stem_equalize_transforms"],
    "onnx.quant_utils": "PowerOfTwoMethod VitisQuantType VitisQuantFormat".split(),
    "onnx.quantize": "quantize_static quantize_dynamic".split(),
    "onnx.calibrate": "PowerOfTwoMethod CachedDataReader CalibrationDataReader".split(),
    "onnx.auto_search": "AutoSearch SearchSpace".split(),
    "onnx.finetuning": ["fast_finetune"],
    "onnx.optimize": ["optimize"],
    "shares.utils.log": "ScreenLogger log_errors".split(),
    "common.utils.log": "ScreenLogger log_errors".split(),
    "shares.utils.testing_utils": "use_temporary_directory delete_directory_content".split(),
    "common.utils.testing_utils": "use_temporary_directory delete_directory_content".split(),
}


# Each line is a module and its public names, as amd-quark 0.13 has them.
_LINES = (pathlib.Path(__file__).parent / "data/names-0.13.txt").read_text().splitlines()
NAMES_0_13 = {module: names.split() for module, _, names in (x.partition(":") for x in _LINES)}


@pytest.mark.parametrize("module", NAMES_0_13)
def test_a_module_has_every_public_name_of_the_mirrored_version(module: str) -> None:
    found = importlib.import_module(f"lowbit.{module}")

    assert [name for name in NAMES_0_13[module] if not hasattr(found, name)] == []


def test_helpers_about_models_do_what_their_names_say(tmp_path: pathlib.Path) -> None:
    helpers = importlib.import_module("lowbit.quark.onnx.utils.model_utils")
    model, feed = small_cnn(), small_feeds(1)[0]

    helpers.check_onnx_model(model)
    helpers.run_onnx_model(model, False, BareReader([feed]))
    helpers.save_onnx_model_with_external_data(model, tmp_path / "a.onnx", True)
    opened = helpers.create_infer_session_for_onnx_model(tmp_path / "a.onnx")
    nhwc = helpers.convert_nchw_to_nhwc(model)

    direct = helpers.create_infer_session_for_onnx_model(model)
    np.testing.assert_array_equal(opened.run(None, feed)[0], direct.run(None, feed)[0])
    shape = nhwc.graph.input[0].type.tensor_type.shape
    assert helpers.get_shape_list(shape) == ["N", 32, 32, 3]
    assert not helpers.check_shared_initializers(model)
    tensor = helpers.generate_initializer([1, 2], np.float32, "t")
    np.testing.assert_array_equal(helpers.get_tensor_value(tensor), np.array([1, 2], np.float32))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_the_names_scripts_import(module: str) -> None:
    found = importlib.import_module(f"lowbit.quark.{module}")

    assert [name for name in MODULES[module] if not hasattr(found, name)] == []


@pytest.mark.parametrize(("name", "home"), OTHER_NAMES.items())
def test_a_name_without_a_file_is_the_module_it_stands_for(name: str, home: str) -> None:
    found = importlib.import_module(name)

    assert found is importlib.import_module(home)
    assert found.__name__ == home
    assert pathlib.Path(str(found.__file__)).exists()


def test_names_without_files_are_the_same_modules_in_every_package(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(
        "import importlib\n"
        "from lowbit.quark.alias import OTHER_NAMES\n"
        "for name, home in OTHER_NAMES.items():\n"
        "    found = importlib.import_module(name.removeprefix('lowbit.'))\n"
        "    assert found is importlib.import_module(home) and found.__name__ == home, name\n"
        "import quark.onnx.quant_utils, quark.version, vai_q_onnx.quant_utils as older\n"
        "from quark import version\n"
        "assert quark.onnx.quant_utils is older and version.git_version == 'lowbit'\n"
        "print(quark.onnx.quantization.quant_utils is older, quark.version.__version__[:4])\n"
    )

    done = _run("script.py", cwd=tmp_path)

    assert done.stderr == ""
    assert done.stdout == "True 0.13\n"


def test_a_leftover_folder_hides_no_name(tmp_path: pathlib.Path) -> None:
    code = (
        "import pathlib, lowbit.quark\n"
        "pathlib.Path('shares').mkdir()\n"
        "lowbit.quark.__path__.append('.')\n"
        "from lowbit.quark.shares import ScreenLogger\n"
        "print(ScreenLogger.__module__)\n"
    )

    done = run_python("-c", code, cwd=tmp_path)

    assert (done.stderr, done.stdout) == ("", "lowbit.quark.common\n")


def _defines(path: pathlib.Path) -> bool:
    """Whether a file has anything but imports and a list of names."""
    body = ast.parse(path.read_text()).body[1:]
    return any(
        not isinstance(node, (ast.Import, ast.ImportFrom)) and "__all__" not in ast.unparse(node)
        for node in body
    )


def test_no_file_is_only_another_name_of_a_module() -> None:
    folder = pathlib.Path(str(lowbit.quark.__file__)).parent
    files = [path for path in folder.rglob("*.py") if path.name != "__init__.py"]

    bare = [path.name for path in files if not _defines(path)]

    assert bare == ["experimental.py"]  # there is nothing in it


def test_everything_is_imported_by_a_star() -> None:
    names: dict = {}

    exec("from lowbit.quark.onnx import *", names)  # noqa: S102

    assert [name for name in ONNX if name not in names] == []


def _run(*arguments: str, cwd: pathlib.Path) -> subprocess.CompletedProcess:
    return run_python("-m", "lowbit.quark", *arguments, cwd=cwd)


def test_an_unchanged_script_runs_with_its_arguments(tmp_path: pathlib.Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    (tmp_path / "script.py").write_text(
        "import sys, beside, quark\n"
        "from quark.onnx import *\n"
        "from quark.onnx.quant_utils import PowerOfTwoMethod as legacy\n"
        "import quark.onnx.quantization.config.custom_config as presets\n"
        "import lowbit.quark.onnx.quantization.config.custom_config as same\n"
        "assert presets is same and legacy is PowerOfTwoMethod\n"
        "assert __name__ == '__main__'\n"
        "print(beside.VALUE, sys.argv[1:], quark.__version__)\n"
    )

    done = _run("script.py", "--flag", "x", cwd=tmp_path)

    assert done.stderr == ""
    assert done.stdout.startswith("7 ['--flag', 'x'] 0.13+lowbit.")


@pytest.mark.parametrize(
    ("arguments", "message"), [([], "usage"), (["nothing.py"], "no such script: nothing.py")]
)
def test_a_missing_script_is_said(tmp_path: pathlib.Path, arguments: list, message: str) -> None:
    done = _run(*arguments, cwd=tmp_path)

    assert done.returncode == 2
    assert message in done.stderr


def test_a_script_that_fails_has_its_traceback_and_an_exit_code(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(
        "from quark.onnx.quantization.config import get_default_config\n"
        "get_default_config('XINT9')\n"
    )

    done = _run("script.py", cwd=tmp_path)

    assert done.returncode != 0
    assert "line 2" in done.stderr
    assert "did you mean 'XINT8'" in done.stderr


_CHILDREN = """
import multiprocessing, os, pickle, subprocess, sys
from quark.onnx.quantization.config import get_default_config
from quark.onnx import CalibrationDataReader, ModelQuantizer

class Reader(CalibrationDataReader):
    def get_next(self):
        return None

def work(name):
    import quark.onnx
    return quark.onnx.get_default_config(name) == get_default_config(name), os.getpid()

if __name__ == "__main__":
    spawning = multiprocessing.get_context("spawn")
    with spawning.Pool(1) as pool:
        same, process = pool.map(work, ["XINT8"])[0]
    print("spawned", same, process != os.getpid())
    code = "import quark.onnx, lowbit.quark.onnx; print(quark.onnx is lowbit.quark.onnx)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import vai_q_onnx, lowbit.quark.vai_q_onnx as same; print(vai_q_onnx is same)"
    subprocess.run([sys.executable, "-c", code], check=True)
    tool = [sys.executable, "-m", "quark.onnx.tools.evaluate", "--help"]
    print(subprocess.run(tool, capture_output=True, text=True).stdout.startswith("usage:"))
    parent = subprocess.run([sys.executable, "deeper.py"], capture_output=True, text=True, cwd="inside")
    print("deeper", parent.stdout.strip() + parent.stderr)
"""


def test_child_processes_find_quark_too(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(_CHILDREN)
    (tmp_path / "inside").mkdir()
    # A folder of that name beside the script, as in a clone of AMD's examples, is no package.
    (tmp_path / "inside" / "quark").mkdir()
    (tmp_path / "inside" / "deeper.py").write_text(
        "import subprocess, sys\n"
        "code = 'import quark; print(quark.__version__.partition(chr(43))[0])'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
    )

    done = _run("script.py", cwd=tmp_path)

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["spawned True True", "True", "True", "True", "deeper 0.13"]


def test_a_module_that_spawns_is_found_by_its_workers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "jobs.py").write_text(_CHILDREN.partition("    code =")[0])

    done = _run("-m", "jobs", cwd=tmp_path)

    assert done.stderr == ""
    assert done.stdout.splitlines() == ["spawned True True"]
