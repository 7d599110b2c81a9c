"""Write what a type checker reads of ``quark``: a stub for each module of ``lowbit.quark``.

    python drop-in/make_stubs.py [FOLDER]

At run time ``quark`` is ``lowbit.quark`` itself (``lowbit/quark/alias.py``), which no checker sees.
A stub is one line that names the real module, for its other names too. The tools have no files that a checker could read, so
their stubs spell out the functions.
"""

# ruff: noqa: INP001

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path

import lowbit.quark
from lowbit.quark.alias import OTHER_NAMES
from lowbit.quark.onnx.tools.table import TOOLS

# What is AMD Quark's own tree of names; all else in ``lowbit.quark`` is behind it.
_MIRRORED = ("common", "experimental", "onnx")
_TOOLS = "lowbit.quark.onnx.tools"
_IMPORTS = (
    ("Sequence[", "from collections.abc import Sequence\n"),
    ("onnx.", "import onnx\n"),
    ("ir.", "import onnx_ir as ir\n"),
)
_WIDTH = 100


def main(folder: Path) -> None:
    """Write the stubs below a folder."""
    _write(folder, "lowbit.quark", "from lowbit.quark import *\n", is_package=True)
    found = pkgutil.walk_packages(lowbit.quark.__path__, "lowbit.quark.")
    modules = {module.name: module.name for module in found if _is_mirrored(module.name)}
    modules |= OTHER_NAMES
    parents = {name.rpartition(".")[0] for name in [*modules, f"{_TOOLS}.main"]}
    for name, real in modules.items():
        _write(folder, name, f"from {real} import *\n", is_package=name in parents)
    for name in TOOLS:
        _write(folder, f"{_TOOLS}.{name}", _tool_stub(f"{_TOOLS}.{name}"), is_package=False)
    predecessor = "from lowbit.quark.vai_q_onnx import *\n"
    _write(folder, "lowbit.vai_q_onnx", predecessor, is_package=True)


def _is_mirrored(name: str) -> bool:
    return name.split(".")[2] in _MIRRORED and not name.startswith(f"{_TOOLS}.")


def _tool_stub(name: str) -> str:
    module = importlib.import_module(name)
    functions = "".join(_declaration(getattr(module, f)) for f in module.__all__)
    standard, *others = (line if word in functions else "" for word, line in _IMPORTS)
    blocks = (standard, "".join(others), functions)
    return "\n".join(block for block in blocks if block)


def _declaration(function: Callable[..., object]) -> str:
    """Return a function's signature as a formatter would write it."""
    signature = inspect.signature(function)
    parameters = [_unquoted(parameter) for parameter in signature.parameters.values()]
    end = f") -> {signature.return_annotation}: ...\n"
    line = f"def {function.__name__}({', '.join(parameters)}{end}"
    if len(line.rstrip()) <= _WIDTH:
        return line
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"def {function.__name__}(\n{lines}{end}"


def _unquoted(parameter: inspect.Parameter) -> str:
    """Return ``name: annotation = default``; annotations are text, which a stub does not quote."""
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"


def _write(folder: Path, name: str, text: str, *, is_package: bool) -> None:
    parts = name.split(".")[1:]
    path = Path(folder, *parts)
    path = path / "__init__.pyi" if is_package else path.with_suffix(".pyi")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    default = Path(__file__).parent / "src"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
