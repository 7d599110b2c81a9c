from lowbit.quark.onnx.tools.replace_inf_weights import *
