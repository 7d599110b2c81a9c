from lowbit.quark.onnx.tools.insert_clip_bfloat16_qdq import *
