from lowbit.quark.onnx.tools.convert_fp16_to_fp32 import *
