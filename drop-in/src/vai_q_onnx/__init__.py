"""``vai_q_onnx``, the predecessor of Quark, is ``lowbit.quark.vai_q_onnx``."""

import sys

from lowbit.quark import alias

sys.modules[__name__] = alias.install(__name__)
