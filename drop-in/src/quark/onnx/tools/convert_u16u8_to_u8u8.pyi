from lowbit.quark.onnx.tools.convert_u16u8_to_u8u8 import *
