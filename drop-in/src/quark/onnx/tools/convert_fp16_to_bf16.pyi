from lowbit.quark.onnx.tools.convert_fp16_to_bf16 import *
