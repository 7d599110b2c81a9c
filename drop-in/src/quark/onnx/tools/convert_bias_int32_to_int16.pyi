from lowbit.quark.onnx.tools.convert_bias_int32_to_int16 import *
