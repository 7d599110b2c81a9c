"""``quark`` in the children of ``python -m lowbit.quark``: this folder is on their PYTHONPATH."""

# ruff: noqa: INP001

import sys
from pathlib import Path

try:
    from lowbit.quark import alias
except ModuleNotFoundError:
    # The parent found it in the folder it was started in; a child may be started elsewhere.
    sys.path.append(str(Path(__file__).parents[3]))
    from lowbit.quark import alias

sys.modules[__name__] = alias.install(__name__)
