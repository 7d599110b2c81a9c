"""``vai_q_onnx`` in the children of ``python -m lowbit.quark``: this folder is on their PYTHONPATH."""

# ruff: noqa: INP001

import sys

from quark import alias  # type: ignore[import-not-found]  # the module next to this one

sys.modules[__name__] = alias.install(__name__)
