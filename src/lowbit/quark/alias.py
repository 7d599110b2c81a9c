"""The names that Quark has for modules, and finding a module by each of them.

``import quark`` (and ``vai_q_onnx``) means lowbit, submodules included, in child processes too. A module is
the same object under all its names, so classes are the same classes.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType

_PACKAGES: Mapping[str, str] = MappingProxyType(
    {"quark": "lowbit.quark", "vai_q_onnx": "lowbit.quark.vai_q_onnx"}
)
"""By the top-level name: the module it stands for."""

_PREDECESSOR: Mapping[str, str] = MappingProxyType(
    {
        "vai_q_onnx.quantize": "lowbit.quark.vai_q_onnx",
        "vai_q_onnx.gen_files": "lowbit.quark.onnx.operators",
    }
)
"""Modules of ``vai_q_onnx`` that Quark's package for ONNX has elsewhere."""

OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "lowbit.quark.version": "lowbit.quark",
        "lowbit.quark.common.utils": "lowbit.quark.common",
        "lowbit.quark.common.utils.log": "lowbit.quark.common",
        "lowbit.quark.common.utils.testing_utils": "lowbit.quark.common",
        "lowbit.quark.shares": "lowbit.quark.common",
        "lowbit.quark.shares.utils": "lowbit.quark.common",
        "lowbit.quark.shares.utils.log": "lowbit.quark.common",
        "lowbit.quark.shares.utils.testing_utils": "lowbit.quark.common",
        "lowbit.quark.onnx.auto_search": "lowbit.quark.onnx.quantization.auto_search",
        "lowbit.quark.onnx.calibrate": "lowbit.quark.onnx.calibration",
        "lowbit.quark.onnx.calibration.methods": "lowbit.quark.onnx.quantization.quant_utils",
        "lowbit.quark.onnx.finetuning": "lowbit.quark.onnx.algorithm",
        "lowbit.quark.onnx.operators.custom_ops": "lowbit.quark.onnx.operators",
        "lowbit.quark.onnx.optimize": "lowbit.quark.onnx.algorithm",
        "lowbit.quark.onnx.quant_utils": "lowbit.quark.onnx.quantization.quant_utils",
        "lowbit.quark.onnx.quantization.config.legacy": "lowbit.quark.onnx.quantization.config.config",
        "lowbit.quark.onnx.quantization.config.maps": "lowbit.quark.onnx.quantization.config.custom_config",
        "lowbit.quark.onnx.quantization.quantize": "lowbit.quark.onnx.quantization.api",
        "lowbit.quark.onnx.quantize": "lowbit.quark.onnx.quantization.api",
        "lowbit.quark.onnx.utils": "lowbit.quark.onnx.model_helpers",
        "lowbit.quark.onnx.utils.deploy_utils": "lowbit.quark.onnx.model_helpers",
        "lowbit.quark.onnx.utils.model_utils": "lowbit.quark.onnx.model_helpers",
    }
)
"""Names of Quark's that have no file: older ones, and those of small modules that are one here.

A module that has such names below it has an empty ``__path__``, as a package does.
"""

_SPELT_AS_FILE = ".py"
_PACKAGE = "amd-quark"
_ANY = DistributionFinder.Context()


class _Package(Distribution):
    """The ``importlib.metadata`` of the package ``amd-quark``: the version mirrored."""

    def read_text(self, filename: str) -> str | None:
        """Return the one file there is."""
        from lowbit.quark import __version__

        lines = ("Metadata-Version: 2.1", f"Name: {_PACKAGE}", f"Version: {__version__}", "")
        return "\n".join(lines) if filename == "METADATA" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        """Return a path inside this package."""
        return Path(__file__).parent / path


class OtherNamesFinder:
    """Finds the modules below ``lowbit.quark`` by the names that have no file."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded, or ``None`` for what has a file, or is not Quark's."""
        del path, target
        real = self.real_name(name)
        if real is None:
            return None
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:
            return None
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(name, _SameModule(real, found), is_package=is_package)

    def real_name(self, name: str) -> str | None:
        """Return the name of the module that has a file, or ``None``."""
        return OTHER_NAMES.get(name)


class QuarkFinder(OtherNamesFinder):
    """Finds ``quark`` and what is below it in ``lowbit.quark``."""

    def real_name(self, name: str) -> str | None:
        """Return the name in ``lowbit.quark``, or ``None`` for what is not Quark's."""
        top, _, rest = name.partition(".")
        if top not in _PACKAGES:
            return None
        # AMD's pages spell `python -m quark.onnx.tools.evaluate.py`.
        rest = rest.removesuffix(_SPELT_AS_FILE)
        if not rest:
            return _PACKAGES[top]
        inside = "lowbit.quark.onnx" if top == "vai_q_onnx" else _PACKAGES[top]
        real = _PREDECESSOR.get(name, f"{inside}.{rest}")
        return OTHER_NAMES.get(real, real)

    def find_distributions(
        self, context: DistributionFinder.Context = _ANY
    ) -> Iterable[Distribution]:
        """Return the package that scripts ask for its version, and no other."""
        name = (context.name or "").replace("_", "-").lower()
        return [_Package()] if name == _PACKAGE else []


class _SameModule(Loader):
    """Loads a module under a second name."""

    def __init__(self, real: str, found: ModuleSpec) -> None:
        self._real = real
        self._found = found

    def exec_module(self, module: ModuleType) -> None:
        """Put the module itself in the place of the new one, as Python lets modules do."""
        real = importlib.import_module(self._real)
        if ".tools." in self._real:
            # Lets `-m quark.onnx.tools.evaluate.py` look for a submodule `py`.
            real.__path__ = []
        sys.modules[module.__name__] = real

    def get_code(self, name: str) -> CodeType | None:
        """Return the code that ``python -m`` runs."""
        del name
        get_code = getattr(self._found.loader, "get_code", None)
        return get_code(self._real) if get_code is not None else None


def install(name: str = "quark") -> ModuleType:
    """Resolve Quark's names here from now on, before any other; return the module of one."""
    if not any(isinstance(finder, QuarkFinder) for finder in sys.meta_path):
        for known in [n for n in sys.modules if n.partition(".")[0] in _PACKAGES]:
            del sys.modules[known]
        sys.meta_path.insert(0, QuarkFinder())
    return importlib.import_module(_PACKAGES[name])


def install_in_children() -> None:
    """Make child processes resolve the names too.

    Programs are started with the environment; workers that are spawned get this process's path.
    """
    folder = str(Path(__file__).parent / "on_path")
    if folder in sys.path:
        return
    sys.path.insert(1, folder)
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (folder, known) if part)
