"""``quark`` is ``lowbit.quark``, every submodule included."""

import sys

from lowbit.quark import alias

alias.install()
sys.modules[__name__] = __import__("lowbit.quark", fromlist=["quark"])
