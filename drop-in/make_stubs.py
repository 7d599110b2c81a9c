"""Write what a type checker reads of ``quark``: one line for each module of ``lowbit.quark``.

    python drop-in/make_stubs.py [FOLDER]

At run time ``quark`` is ``lowbit.quark`` itself (``lowbit/quark/alias.py``), which no checker sees.
"""

from __future__ import annotations

import pkgutil
import sys
from pathlib import Path

import lowbit.quark

# What is AMD Quark's own tree of names; all else in ``lowbit.quark`` is behind it.
_MIRRORED = ("common", "onnx", "shares")


def main(folder: Path) -> None:
    """Write the stubs below a folder."""
    _write(folder, "lowbit.quark", is_package=True)
    for module in pkgutil.walk_packages(lowbit.quark.__path__, "lowbit.quark."):
        part = module.name.split(".")[2]
        if part in _MIRRORED:
            _write(folder, module.name, is_package=module.ispkg)


def _write(folder: Path, name: str, *, is_package: bool) -> None:
    parts = name.split(".")[1:]
    path = Path(folder, *parts)
    path = path / "__init__.pyi" if is_package else path.with_suffix(".pyi")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"from {name} import *\n", encoding="utf-8")


if __name__ == "__main__":
    default = Path(__file__).parent / "src"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
