"""``quark`` is ``lowbit.quark``, every submodule included."""

import sys

from lowbit.quark import alias

sys.modules[__name__] = alias.install(__name__)
