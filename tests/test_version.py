"""The version, which the build reads from the file alone."""

from __future__ import annotations

import ast
import importlib.metadata
import pathlib
import re

import lowbit
from lowbit import version

FILE = pathlib.Path(version.__file__)


def test_it_is_that_of_the_package_and_of_its_metadata() -> None:
    assert lowbit.__version__ == version.__version__ == importlib.metadata.version("lowbit")


def test_it_is_a_release_that_pip_can_compare() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev|\.post)\d+)?", version.__version__)


def test_the_file_can_be_read_without_importing_anything() -> None:
    body = ast.parse(FILE.read_text("utf-8")).body

    assert [type(part) for part in body] == [ast.Expr, ast.Assign]
    assert ast.literal_eval(body[1].value) == version.__version__


def test_the_build_reads_this_file() -> None:
    project = FILE.parents[2] / "pyproject.toml"

    assert f'path = "src/lowbit/{FILE.name}"' in project.read_text("utf-8")
