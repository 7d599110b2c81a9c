from lowbit.quark.onnx.tools.convert_s8s8_to_u8s8 import *
