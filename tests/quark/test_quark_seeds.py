"""The code of AMD's own pages, run as printed, and what comes out of it.

The pages are not part of this project: LOWBIT_SEEDS names the folder they lie in. What a page
leaves open is filled in: files under its placeholder paths, data for its stub of a reader, names it
forgot to import. The same calls in our own words, which run everywhere, are in the tests beside.
"""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.quark_cases import DATA, outputs_of, read_quantized, samples
from helpers.quark_helpers import BareReader, run_python
from helpers.seed_blocks import Block, code_blocks
from helpers.small_models import small_cnn
from PIL import Image

from lowbit.quark import alias
from lowbit.quark.errors import CompatibilityWarning

ROOT = pathlib.Path(__file__).parents[2]
FORGOTTEN = """
from onnxruntime.quantization.calibrate import CalibrationMethod
from quark.onnx import *
from quark.onnx.quantization.config import *
from quark.onnx.quantization.config.custom_config import DEFAULT_ADAROUND_PARAMS
"""
LINES = {
    "000": [33, 92, 121, 133, 166],
    "001": [42],
    "002": [21, 52, 67, 93],
    "003": [27],
    "004": [25, 41, 60, 74, 90, 108, 121, 137],
}


@pytest.fixture(scope="session")
def seeds() -> dict[str, dict[int, Block]]:
    place = os.environ.get("LOWBIT_SEEDS")
    if not place:
        pytest.skip("LOWBIT_SEEDS does not name the folder of AMD's pages")
    files = {path.name[:3]: path for path in pathlib.Path(place).glob("00*.txt")}
    return {key: {b.line: b for b in code_blocks(path)} for key, path in files.items()}


@pytest.fixture
def page(
    seeds: dict, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> collections.abc.Iterator[Any]:
    """Run blocks of a page in a folder of their own, one after another."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [n for n in sys.modules if n.partition(".")[0] == "quark"]:
        monkeypatch.delitem(sys.modules, name)
    alias.install()
    shutil.copy(DATA / "float.onnx", "float.onnx")
    names: dict[str, Any] = {
        "__name__": "page",
        "input_model_path": "float.onnx",
        "output_model_path": "out.onnx",
        "quantized_model_path": "out.onnx",
        "data_reader": BareReader(samples("calib.npz")),
        "calib_data_reader": BareReader(samples("calib.npz")),
    }

    def run(seed: str, line: int, **stand_ins: Any) -> dict[str, Any]:
        text = seeds[seed][line].text
        for old, new in stand_ins.pop("replace", {}).items():
            assert old in text
            text = text.replace(old, new)
        names.update(stand_ins)
        exec(compile(text, f"seed {seed}, line {line}", "exec"), names)  # noqa: S102
        return names

    run.names = names
    run.forgotten = lambda: exec(FORGOTTEN, names)  # noqa: S102
    yield run
    for name in [n for n in sys.modules if n.partition(".")[0] == "quark"]:
        del sys.modules[name]


def _quantize(config: Any, output: str = "out.onnx") -> onnx.ModelProto:
    """Do with a configuration what the block before it on the page did."""
    from lowbit.quark.onnx import Config, ModelQuantizer, QuantizationConfig

    config = Config(config) if isinstance(config, QuantizationConfig) else config
    ModelQuantizer(config).quantize_model("float.onnx", output, BareReader(samples("calib.npz")))
    return onnx.load(output)


def _golden(name: str) -> onnx.ModelProto:
    return onnx.load(DATA / f"{name}.onnx")


def _structure(model: onnx.ModelProto) -> collections.Counter:
    return collections.Counter(node.op_type for node in model.graph.node)


def _same(ours: onnx.ModelProto, case: str) -> None:
    """Compare with Quark's own result; only the order of float sums may differ."""
    _same_activations(ours, case)
    theirs, mine = read_quantized(_golden(case)), read_quantized(ours)
    for key, (codes, _, _) in theirs.constants.items():
        assert np.abs(mine.constants[key][0].astype(int) - codes.astype(int)).max() <= 1


def _same_activations(ours: onnx.ModelProto, case: str) -> None:
    theirs, mine = read_quantized(_golden(case)).activations, read_quantized(ours).activations
    assert mine.keys() == theirs.keys()
    for name, (scale, zero) in theirs.items():
        np.testing.assert_allclose(mine[name][0], scale, rtol=1e-6)
        np.testing.assert_array_equal(mine[name][1], zero)


def _sqnr(model: onnx.ModelProto) -> float:
    want = outputs_of(onnx.load(DATA / "float.onnx"), "test_input.npz")["output"]
    got = outputs_of(model, "test_input.npz")["output"]
    return float(10 * np.log10((want**2).sum() / ((want - got) ** 2).sum()))


def test_every_block_of_the_pages_is_run_here(seeds: dict) -> None:
    assert {key: sorted(blocks) for key, blocks in seeds.items()} == LINES


def test_000_quantizes_with_a8w8(page: Any) -> None:
    model = onnx.load("float.onnx")
    for node in model.graph.node:
        node.input[:] = ["model_input_name" if n == "input" else n for n in node.input]
    model.graph.input[0].name = "model_input_name"
    pathlib.Path("path/to").mkdir(parents=True)
    onnx.save(model, "path/to/float_model.onnx")
    data = [feed["input"] for feed in samples("calib.npz")]

    page("000", 33, replace={"processed_data = []": "processed_data = list(DATA)"}, DATA=data)

    result = onnx.load("path/to/quantized_model.onnx")
    for node in result.graph.node:
        if node.input[0] == "model_input_name":
            node.input[0] = "input"
    _same(result, "a8w8_default")


def test_000_infers_and_evaluates(page: Any, seeds: dict, tmp_path: pathlib.Path) -> None:
    shutil.copy("float.onnx", "float32_model.onnx")
    shutil.copy(DATA / "a8w8_default.onnx", "a8w8_quantized_model.onnx")
    loader = [feed["input"] for feed in samples("test_input.npz")]
    page("000", 92, input_data_loader=loader)
    page(
        "000",
        92,
        replace={
            '"float32_model.onnx" #': '"a8w8_quantized_model.onnx" #',
            '"baseline_results" #': '"quantized_results" #',
        },
    )
    command = seeds["000"][121].text
    folders = {"BASELINE": "baseline_results", "QUANTIZED": "quantized_results"}
    for word, folder in folders.items():
        command = command.replace(f"${word}_RESULTS_FOLDER_PATH", folder)

    program, *arguments = shlex.split(command)

    done = run_python(*arguments, cwd=tmp_path, more_path=str(ROOT / "drop-in/src"))
    assert program == "python"
    assert done.stderr == ""
    lines = dict(line.split(": ") for line in done.stdout.splitlines())
    assert 0.99 < float(lines["Min cos similarity"]) < 1
    assert float(lines["Mean l2 distance"]) > 0
    assert "Mean psnr" in lines


def test_001_prints_a_configuration_for_xint8(page: Any, capsys: pytest.CaptureFixture) -> None:
    page.forgotten()

    names = page("001", 42)

    assert "The configuration of the quantization is Config(" in capsys.readouterr().out
    _same(_quantize(names["config"]), "xint8_default")


def test_002_writes_casts(page: Any) -> None:
    page("002", 21)

    model = onnx.load("out.onnx")
    with np.load(DATA / "outputs_float.npz") as stored:
        expected = stored["bf16_cast_seed__noopt"]
    got = outputs_of(model, "test_input.npz")["output"]
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=0.02, atol=0.05)
    assert {node.domain for node in model.graph.node} == {""}


def test_002_scales_into_the_dense_range_and_runs_in_a_session(page: Any) -> None:
    page("002", 21)
    names = page("002", 52)
    _quantize(names["quant_config"], "scaled.onnx")

    names = page("002", 67, onnx_model_path="scaled.onnx")

    feed = samples("test_input.npz")[0]
    plain = ort.InferenceSession("scaled.onnx")
    assert np.array_equal(names["session"].run(None, feed)[0], plain.run(None, feed)[0])
    domains = {node.domain for node in onnx.load("scaled.onnx").graph.node}
    assert "com.amd.quark" in domains


@pytest.mark.parametrize(("line", "least"), [(133, 1.5), (166, 0.5)])
def test_000_finetunes(page: Any, line: int, least: float) -> None:
    page("000", line)

    tuned = onnx.load("out.onnx")
    plain = _golden("a8w8_default")
    assert _sqnr(tuned) > _sqnr(plain) + least
    assert _structure(tuned) == _structure(plain)


def test_002_finetunes_bfloat16_without_the_switch(page: Any) -> None:
    page("002", 21)
    names = page("002", 93)

    with pytest.warns(CompatibilityWarning, match="without include_fast_ft"):
        tuned = _quantize(names["quant_config"])

    names["quant_config"].extra_options.clear()
    assert _sqnr(tuned) >= _sqnr(_quantize(names["quant_config"])) - 0.01


def test_003_rounds_adaptively(page: Any) -> None:
    page("003", 27)

    tuned = onnx.load("out.onnx")
    plain = _golden("u8s8_seed003_noft")
    assert _sqnr(tuned) > _sqnr(plain) + 1.5
    _same_activations(tuned, "u8s8_seed003_noft")


def test_004_finetunes_accurately(page: Any) -> None:
    page.forgotten()

    names = page("004", 60)

    plain = dataclasses.replace(names["INT8_CNN_ACCURATE_CONFIG"], include_fast_ft=False)
    plain.extra_options = {"Percentile": 99.9999}
    assert _sqnr(_quantize(names["config"])) > _sqnr(_quantize(plain, "plain.onnx"))


def test_004_equalizes(page: Any) -> None:
    page.forgotten()

    names = page("004", 108)

    _same(_quantize(names["config"]), "xint8_default")


def _tutorial(folder: pathlib.Path) -> None:
    """Lay out the files that the tutorial's commands name."""
    (folder / "models").mkdir()
    for name in ("mobilenetv2", "resnet50"):
        onnx.save(small_cnn(224), folder / f"models/{name}.onnx")
    (folder / "calib_data").mkdir()
    rng = np.random.default_rng(1)
    for index in range(2):
        pixels = rng.integers(0, 256, (240, 240, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"calib_data/{index}.png")
    shutil.copy(ROOT / "examples/quark/advanced_quark_quantize.py", folder)


@pytest.mark.parametrize("line", [25, 41, 74, 90, 121, 137])
def test_004_commands_of_the_tutorial(line: int, seeds: dict, tmp_path: pathlib.Path) -> None:
    _tutorial(tmp_path)
    program, *arguments = shlex.split(seeds["004"][line].text)

    done: subprocess.CompletedProcess = run_python(*arguments, cwd=tmp_path)

    assert (program, done.returncode) == ("python", 0), done.stderr
    output = tmp_path / arguments[arguments.index("--model_output") + 1]
    onnx.checker.check_model(onnx.load(output), full_check=True)
    assert {n.op_type for n in onnx.load(output).graph.node} >= {"QuantizeLinear", "Conv"}
