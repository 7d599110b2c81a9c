from lowbit.quark.onnx.tools.convert_qdq_to_qop import *
