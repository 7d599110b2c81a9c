from lowbit.quark.onnx.tools.convert_custom_ops import *
