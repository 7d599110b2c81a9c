from lowbit.quark.onnx.tools.convert_u16s8_to_s16s8 import *
