from lowbit.quark.onnx.tools.remove_qdq_between_ops import *
