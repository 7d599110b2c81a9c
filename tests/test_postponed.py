"""What is not loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
import lowbit.api.quantize
import onnx_ir as ir
assert "sympy.core" not in sys.modules, "loaded too early"
assert "rich" not in sys.modules, "loaded too early"
assert "numpy.f2py" not in sys.modules, "loaded too early"
assert "PIL" not in sys.modules, "loaded too early"
size = ir.SymbolicDim("n") + 1
from sympy.core import Symbol
import sympy
assert Symbol is sympy.Symbol and "sympy.core" in sys.modules
print(size, sympy.sqrt(4), sympy.__spec__.name)
"""


def test_sympy_is_loaded_on_first_use_and_is_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CODE], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", "n + 1 2 sympy\n")
