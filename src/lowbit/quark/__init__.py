"""AMD Quark's names on lowbit: ``lowbit.quark`` mirrors ``quark``, names and meanings.

``python -m lowbit.quark SCRIPT.py`` runs an unchanged Quark script. In code, write
``from lowbit.quark.onnx import ModelQuantizer`` instead of ``from quark.onnx ...``.
"""

from __future__ import annotations

from lowbit import version

__version__ = f"0.13+lowbit.{version.__version__}"
"""The version of Quark whose behaviour is mirrored, and ours."""

__all__ = ["__version__"]
