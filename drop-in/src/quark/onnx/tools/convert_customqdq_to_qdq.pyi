from lowbit.quark.onnx.tools.convert_customqdq_to_qdq import *
