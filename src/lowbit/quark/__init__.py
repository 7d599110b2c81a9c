"""AMD Quark's names on lowbit: ``lowbit.quark`` mirrors ``quark``, names and meanings.

``python -m lowbit.quark SCRIPT.py`` runs an unchanged Quark script. In code, write
``from lowbit.quark.onnx import ModelQuantizer`` instead of ``from quark.onnx ...``.
"""

from __future__ import annotations

from lowbit.quark.version import __version__

__all__ = ["__version__"]
