from lowbit.quark.onnx.tools.remove_initializer_from_input import *
