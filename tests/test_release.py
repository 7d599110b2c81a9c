"""What is released: an sdist, and a wheel that works in an environment with nothing else in it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib import metadata

import onnx
import pytest
from helpers.small_models import small_cnn
from packaging.requirements import Requirement

import lowbit

ROOT = pathlib.Path(__file__).parent.parent

# The files and the environment are made once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("release")]


def _run(*words: object, **settings) -> subprocess.CompletedProcess[str]:
    # Nothing of this checkout may be found by accident.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
        env=clean,
        **settings,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("dist")
    # With the backend of this environment, which must be one that pyproject.toml asks for.
    ran = _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def scripts(built, tmp_path_factory) -> pathlib.Path:
    """The programs of a clean environment that has the wheel, what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    (wheel,) = built.glob("*.whl")
    python = ["-m", "pip", "--python", programs / "python"]
    ran = _run(sys.executable, *python, "install", "--quiet", "--no-deps", "--no-compile", wheel)
    assert ran.returncode == 0, ran.stderr[-2000:]
    (packages,) = folder.rglob("site-packages")
    (own,) = packages.glob("lowbit-*.dist-info")
    _link_dependencies(metadata.Distribution.at(own), packages, {"lowbit"})
    return programs


def _link_dependencies(
    package: metadata.Distribution, folder: pathlib.Path, seen: set[str]
) -> None:
    """Link what a package requires, and what that requires, from this environment into a folder."""
    for text in package.requires or ():
        required = Requirement(text)
        if required.name in seen or not (
            required.marker is None or required.marker.evaluate({"extra": ""})
        ):
            continue
        seen.add(required.name)
        found = metadata.distribution(required.name)
        for name in {file.parts[0] for file in found.files or ()} - {".."}:
            if not (folder / name).exists():
                (folder / name).symlink_to(found.locate_file(name))
        _link_dependencies(found, folder, seen)


def test_names_have_the_version(built) -> None:
    assert {path.name for path in built.iterdir()} == {
        f"lowbit-{lowbit.__version__}-py3-none-any.whl",
        f"lowbit-{lowbit.__version__}.tar.gz",
    }


def test_the_wheel_has_all_modules_and_assets_and_nothing_else(built) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("lowbit/")}
        others = {name.split("/")[0] for name in archive.namelist()} - {"lowbit"}

    source = ROOT / "src"
    own = {
        path.relative_to(source).as_posix()
        for path in (source / "lowbit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == own
    assert others == {f"lowbit-{lowbit.__version__}.dist-info"}


def test_the_sdist_has_what_is_needed_to_test_it(built) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}

    # Of what tests import and read, and of what a reader looks for, one of each.
    for name in (
        *("pyproject.toml", "LICENSE", "README.md", "CONTRIBUTING.md", "Makefile", "docs/cli.md"),
        *("tests/test_release.py", "bench/presets.py", "drop-in/pyproject.toml"),
        "examples/cifar10/demo.py",
    ):
        assert name in names


def test_the_import_is_silent(scripts, tmp_path) -> None:
    code = "import lowbit, lowbit.api, lowbit.cli; print(lowbit.__version__)"

    ran = _run(scripts / "python", "-W", "error", "-c", code, cwd=tmp_path)

    assert (ran.returncode, ran.stdout.strip(), ran.stderr) == (0, lowbit.__version__, "")


def test_a_model_is_quantized_with_nothing_but_the_dependencies(scripts, tmp_path) -> None:
    onnx.save(small_cnn(), tmp_path / "model.onnx")
    words = "quantize model.onnx int8.onnx --data random --report page.html".split()

    ran = _run(scripts / "lowbit", *words, cwd=tmp_path)

    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "SQNR" in ran.stdout
    onnx.checker.check_model(onnx.load(tmp_path / "int8.onnx"))
    assert (tmp_path / "page.html").stat().st_size > 50_000
