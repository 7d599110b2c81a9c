from lowbit.quark.onnx.tools.remove_qdq_mul_add import *
