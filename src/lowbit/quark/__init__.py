"""AMD Quark's names on lowbit: ``lowbit.quark`` mirrors ``quark``, names and meanings.

``python -m lowbit.quark SCRIPT.py`` runs an unchanged Quark script. In code, write
``from lowbit.quark.onnx import ModelQuantizer`` instead of ``from quark.onnx ...``.
"""

from __future__ import annotations

import sys

from lowbit.quark.alias import OtherNamesFinder
from lowbit.version import __version__ as _own_version

__version__ = f"0.13+lowbit.{_own_version}"
"""The version of Quark whose behaviour is mirrored, and ours."""
git_version = "lowbit"

__all__ = ["__version__", "git_version"]

# First: where a folder of that name is left over, Python would take it for a package.
sys.meta_path.insert(0, OtherNamesFinder())
