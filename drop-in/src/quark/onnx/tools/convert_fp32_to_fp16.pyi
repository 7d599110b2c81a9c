from lowbit.quark.onnx.tools.convert_fp32_to_fp16 import *
