"""Make ``import quark`` mean ``lowbit.quark``, every submodule included.

A module is the same object under both names, so classes are the same classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

_HERE = "lowbit.quark"
_SPELT_AS_FILE = ".py"


class QuarkFinder:
    """Finds ``quark`` and what is below it in ``lowbit.quark``."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded, or ``None`` for what is not Quark's."""
        del path, target
        if name.partition(".")[0] != "quark":
            return None
        # AMD's pages spell `python -m quark.onnx.tools.evaluate.py`.
        real = _HERE + name.removeprefix("quark").removesuffix(_SPELT_AS_FILE)
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, _SameModule(real, found), is_package=is_package)


class _SameModule(Loader):
    """Loads a module under a second name."""

    def __init__(self, real: str, found: ModuleSpec) -> None:
        self._real = real
        self._found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself."""
        del spec
        return importlib.import_module(self._real)

    def exec_module(self, module: ModuleType) -> None:
        """Undo what the import system wrote into the module for its second name."""
        module.__spec__ = self._found
        module.__loader__ = self._found.loader
        module.__name__ = self._real
        locations = self._found.submodule_search_locations
        module.__package__ = self._real if locations is not None else self._real.rpartition(".")[0]
        if ".tools." in self._real:
            # Lets `-m quark.onnx.tools.evaluate.py` look for a submodule `py`.
            module.__path__ = []

    def get_code(self, name: str) -> CodeType | None:
        """Return the code that ``python -m`` runs."""
        del name
        get_code = getattr(self._found.loader, "get_code", None)
        return get_code(self._real) if get_code is not None else None


def install() -> None:
    """Let ``quark`` be found here from now on, before any other of that name."""
    if any(isinstance(finder, QuarkFinder) for finder in sys.meta_path):
        return
    for name in [n for n in sys.modules if n == "quark" or n.startswith("quark.")]:
        del sys.modules[name]
    sys.meta_path.insert(0, QuarkFinder())
