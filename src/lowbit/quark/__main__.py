"""``python -m lowbit.quark SCRIPT.py ...``: run an AMD Quark script on lowbit, unchanged.

``-m MODULE ...`` runs a module instead, such as ``-m quark.onnx.tools.evaluate``.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from lowbit.errors import LowbitError
from lowbit.quark import alias

_USAGE = "usage: python -m lowbit.quark SCRIPT.py [ARGUMENT ...]\n       python -m lowbit.quark -m MODULE [ARGUMENT ...]\n"
_WRONG = 2


def main(arguments: list[str]) -> int:
    """Run what the arguments name; return the exit code."""
    as_module = arguments[:1] == ["-m"]
    rest = arguments[1:] if as_module else arguments
    if not rest or rest[0] in ("-h", "--help"):
        sys.stderr.write(_USAGE)
        return 0 if rest else _WRONG
    if not as_module and not Path(rest[0]).exists():
        sys.stderr.write(f"lowbit.quark: no such script: {rest[0]}\n")
        return _WRONG
    alias.install()
    sys.argv = rest
    sys.path[0] = str(Path.cwd() if as_module else Path(rest[0]).resolve().parent)
    alias.install_in_children()
    try:
        if as_module:
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(rest[0], run_name="__main__")
    except LowbitError as error:
        # A script's own traceback says where; the last line says what and the way out.
        sys.excepthook(type(error), error, error.__traceback__)
        return _WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
