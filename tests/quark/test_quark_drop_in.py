"""The top-level name ``quark``: at run time, for type checkers, and the tutorial's script."""

from __future__ import annotations

import contextlib
import io
import pathlib
import runpy
import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from helpers.quark_cases import DATA
from helpers.quark_helpers import run_python
from helpers.small_models import small_cnn
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
DROP_IN = ROOT / "drop-in"
HERE = pathlib.Path(__file__).parent


def test_a_script_runs_unchanged(tmp_path: pathlib.Path) -> None:
    arguments = (str(HERE / "typed_script.py"), str(DATA / "float.onnx"))

    dropped = run_python(*arguments, cwd=tmp_path, more_path=str(DROP_IN / "src"))
    hosted = run_python("-m", "lowbit.quark", *arguments, cwd=tmp_path)

    assert dropped.stderr == hosted.stderr == ""
    assert dropped.stdout == hosted.stdout
    assert dropped.stdout.startswith("True libcustom_ops.so\n")
    onnx.checker.check_model(onnx.load(tmp_path / "newer.onnx"), full_check=True)


def test_modules_are_the_same_under_both_names(tmp_path: pathlib.Path) -> None:
    code = (
        "import quark.onnx.quantization.api as a, lowbit.quark.onnx.quantization.api as b, quark\n"
        "from quark.onnx import *\n"
        "print(a is b, a.__name__, ModelQuantizer is b.ModelQuantizer, quark.onnx.__version__)\n"
        "import quark.nothing"
    )

    done = run_python("-c", code, cwd=tmp_path, more_path=str(DROP_IN / "src"))

    assert done.stdout.startswith("True lowbit.quark.onnx.quantization.api True 0.13+lowbit.")
    assert "No module named 'quark.nothing'" in done.stderr


def test_what_type_checkers_read_is_up_to_date(tmp_path: pathlib.Path) -> None:
    make = runpy.run_path(str(DROP_IN / "make_stubs.py"))["main"]

    make(tmp_path)

    def read(folder: pathlib.Path) -> dict[str, str]:
        return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.pyi")}

    assert read(tmp_path) == read(DROP_IN / "src"), "run drop-in/make_stubs.py"
    assert "quark/onnx/quant_utils.pyi" in read(tmp_path)


def _write_tutorial(folder: pathlib.Path) -> None:
    """Write the files that the tutorial reads."""
    onnx.save(small_cnn(64), folder / "model.onnx")
    (folder / "calib").mkdir()
    rng = np.random.default_rng(1)
    for index in range(3):
        pixels = rng.integers(0, 256, (80, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"calib/{index}.png")


@pytest.fixture
def tutorial(tmp_path: pathlib.Path) -> pathlib.Path:
    _write_tutorial(tmp_path)
    return tmp_path


SCRIPT = str(ROOT / "examples/quark/advanced_quark_quantize.py")
FILES = ("--model_input", "model.onnx", "--model_output", "out.onnx", "--calib_data", "calib")


def _tutorial(folder: pathlib.Path, *options: str) -> tuple[int, str]:
    """Run the tutorial's script in this process; return its exit code and what it says on stderr."""
    said, code = io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [SCRIPT, *FILES, *options])
        try:
            runpy.run_path(SCRIPT, run_name="__main__")
        except SystemExit as end:
            code = end.code
    return code, said.getvalue()


def _tutorial_process(folder: pathlib.Path, *options: str) -> tuple[int, str]:
    done = run_python(SCRIPT, *FILES, *options, cwd=folder)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("run", "option"), [(_tutorial_process, []), (_tutorial, ["--cross_layer_equalization"])]
)
def test_the_tutorials_command_line(tutorial: pathlib.Path, run: Callable, option: list) -> None:
    assert run(tutorial, *option) == (0, "")

    model = onnx.load(tutorial / "out.onnx")
    onnx.checker.check_model(model, full_check=True)
    scales = [t for t in model.graph.initializer if t.name.endswith("_scale")]
    powers = np.log2([float(onnx.numpy_helper.to_array(t).item()) for t in scales])
    assert len(scales) > 10
    np.testing.assert_array_equal(powers, np.rint(powers))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> onnx.ModelProto:
    """What the tutorial writes without options."""
    folder = tmp_path_factory.mktemp("plain")
    _write_tutorial(folder)
    assert _tutorial(folder)[0] == 0
    return onnx.load(folder / "out.onnx")


@pytest.mark.parametrize("option", ["--fast_finetune", "--adaround", "--adaquant"])
def test_the_tutorial_finetunes(
    tutorial: pathlib.Path, plain: onnx.ModelProto, option: str
) -> None:
    assert _tutorial(tutorial, option) == (0, "")

    tuned = onnx.load(tutorial / "out.onnx")
    onnx.checker.check_model(tuned, full_check=True)
    assert tuned.graph.initializer != plain.graph.initializer


def test_the_tutorial_fails_with_a_word(tutorial: pathlib.Path) -> None:
    (tutorial / "model.onnx").write_bytes(b"")

    code, error = _tutorial(tutorial)

    assert code == 2
    assert "is empty" in error
    assert not (tutorial / "out.onnx").exists()
