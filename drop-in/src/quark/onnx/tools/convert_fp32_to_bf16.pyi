from lowbit.quark.onnx.tools.convert_fp32_to_bf16 import *
