from lowbit.quark.onnx.tools.replace_bfloat16_qdq_cast import *
