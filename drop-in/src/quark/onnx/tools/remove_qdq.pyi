from lowbit.quark.onnx.tools.remove_qdq import *
