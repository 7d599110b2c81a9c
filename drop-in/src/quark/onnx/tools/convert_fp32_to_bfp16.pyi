from lowbit.quark.onnx.tools.convert_fp32_to_bfp16 import *
