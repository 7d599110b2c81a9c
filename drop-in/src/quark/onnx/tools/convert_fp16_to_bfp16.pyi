from lowbit.quark.onnx.tools.convert_fp16_to_bfp16 import *
